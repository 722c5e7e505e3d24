"""Replaces the weights of matrix products in an OpenVINO model by compressed ones.

The arithmetic is in npu_compiler.quantize.weights. What a plugin recognises (measured on OpenVINO
2026.4.1, CPU plugin): Constant u8/i8/u4/i4 -> Convert f32 -> Subtract -> Multiply -> Reshape ->
MatMul in float32 types. In bfloat16 types the same pattern is unpacked when the model is compiled,
so the product then gets float32 types between two casts, which the plugin removes again.
"""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov
import openvino.opset15 as ops
import torch

from npu_compiler.errors import OptionError
from npu_compiler.quantize.weights import (
    GROUP_SIZES,
    MODES,
    QuantizedWeight,
    fitting_group,
    quantize_weight,
)

__all__ = ["CompressedWeight", "CompressionReport", "compress_weights"]

_FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class CompressedWeight:
    """One weight that was compressed.

    Attributes:
        name: friendly name of the constant.
        shape: as (output channels, inputs).
        mode: int8 or int4.
        group_size: inputs that share a scale; None for one scale per output channel.
        size_before_bytes, size_after_bytes: without and with scales and zero points.
        relative_error: norm of the difference by norm of the weight.
    """

    name: str
    shape: tuple[int, int]
    mode: str
    group_size: int | None
    size_before_bytes: int
    size_after_bytes: int
    relative_error: float


@dataclass(frozen=True)
class CompressionReport:
    """What compress_weights did.

    Attributes:
        weights: the compressed ones, in the order of the model.
        skipped: constant name -> why it kept its precision.
    """

    weights: tuple[CompressedWeight, ...]
    skipped: dict[str, str]

    @property
    def size_before_bytes(self) -> int:
        """Bytes of the compressed weights before."""
        return sum(weight.size_before_bytes for weight in self.weights)

    @property
    def size_after_bytes(self) -> int:
        """Bytes of the compressed weights now."""
        return sum(weight.size_after_bytes for weight in self.weights)

    def __str__(self) -> str:
        ratio = self.size_before_bytes / max(self.size_after_bytes, 1)
        return (
            f"{len(self.weights)} weights compressed {ratio:.1f}x, from "
            f"{self.size_before_bytes / 1e6:.1f} MB to {self.size_after_bytes / 1e6:.1f} MB; "
            f"{len(self.skipped)} kept"
        )


def compress_weights(
    model: ov.Model,
    *,
    mode: str,
    group_size: int = 64,
    symmetric: bool = False,
    min_elements: int = 4096,
) -> CompressionReport:
    """Compresses, in place, the constants that are the second factor of a MatMul.

    A constant that a Gather reads too (an embedding tied to the head) is compressed to int8 per
    row for both, also with mode int4: the head decides the next token. Rows that no group size up
    to the wished one divides are int8 as well; see fitting_group.

    Args:
        model: changed in place. The weights' memory is no longer needed where all users changed.
        mode: "int8" (one scale per output channel) or "int4" (one per group).
        group_size: 32, 64 or 128; for int4.
        symmetric: without zero points: a little smaller, a little less exact.
        min_elements: smaller constants keep their precision.

    Raises:
        OptionError: [quantize-mode] or [quantize-group] for a value that is not listed above.
    """
    if mode not in MODES:
        raise OptionError(
            f"compress_weights: mode is one of {', '.join(MODES)}; got {mode!r}. Choose one.",
            code="quantize-mode",
        )
    if group_size not in GROUP_SIZES:
        raise OptionError(
            f"compress_weights: group_size is one of 32, 64, 128; got {group_size!r}. Choose one.",
            code="quantize-group",
        )
    done: list[CompressedWeight] = []
    skipped: dict[str, str] = {}
    for uses in _uses_of_constants(model):
        if uses.elements < min_elements:
            skipped[uses.name] = f"{uses.elements} elements are less than {min_elements}"
            continue
        group = fitting_group(uses.columns, group_size) if mode == "int4" else None
        if uses.gathers:
            group = None
        done.append(_compress(uses, group, symmetric))
    model.validate_nodes_and_infer_types()
    return CompressionReport(tuple(done), skipped)


@dataclass(frozen=True)
class _Uses:
    constant: ov.Node
    products: tuple[ov.Node, ...]
    gathers: tuple[ov.Node, ...]
    is_transposed: bool

    @property
    def name(self) -> str:
        return str(self.constant.get_friendly_name())

    @property
    def elements(self) -> int:
        rows, columns = self.constant.get_output_shape(0)
        return int(rows * columns)

    @property
    def columns(self) -> int:
        return int(self.constant.get_output_shape(0)[1 if self.is_transposed else 0])


def _uses_of_constants(model: ov.Model) -> list[_Uses]:
    found: list[_Uses] = []
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Constant" or len(node.get_output_shape(0)) != 2:
            continue
        if node.get_output_element_type(0).get_type_name() not in _FLOATS:
            continue
        by_layout: dict[bool, list[ov.Node]] = {True: [], False: []}
        gathers: list[ov.Node] = []
        for target in node.output(0).get_target_inputs():
            user = target.get_node()
            kind = user.get_type_name()
            if kind == "MatMul" and target.get_index() == 1:
                by_layout[bool(user.get_attributes()["transpose_b"])].append(user)
            elif kind == "Gather" and target.get_index() == 0 and _axis_of(user) == 0:
                gathers.append(user)
        for is_transposed, products in by_layout.items():
            if products:
                shared = tuple(gathers) if is_transposed else ()
                found.append(_Uses(node, tuple(products), shared, is_transposed))
    return found


def _axis_of(gather: ov.Node) -> int | None:
    source = gather.input_value(2).get_node()
    return int(source.get_data().item()) if source.get_type_name() == "Constant" else None


def _compress(uses: _Uses, group: int | None, symmetric: bool) -> CompressedWeight:
    weight = _matrix(uses.constant)
    matrix = weight if uses.is_transposed else weight.t()
    bits = 4 if group is not None else 8
    quantized = quantize_weight(matrix, bits=bits, group_size=group, symmetric=symmetric)
    size_before = matrix.numel() * matrix.element_size()
    error = _relative_error(matrix, quantized)
    value = _decompressed(quantized, tuple(matrix.shape), uses.name)
    for product in uses.products:
        _replace_product(product, value)
    for gather in uses.gathers:
        _replace_gather(gather, value)
    return CompressedWeight(
        name=uses.name,
        shape=(int(matrix.shape[0]), int(matrix.shape[1])),
        mode=f"int{bits}",
        group_size=group,
        size_before_bytes=size_before,
        size_after_bytes=_size_bytes(quantized),
        relative_error=error,
    )


def _matrix(constant: ov.Node) -> torch.Tensor:
    """The constant's memory as a torch matrix, without a copy for the types that numpy knows."""
    kind = constant.get_output_element_type(0).get_type_name()
    if kind == "bf16":
        data = torch.from_numpy(constant.get_tensor_view().data.view("int16"))
        return data.view(torch.bfloat16)
    return torch.from_numpy(constant.get_tensor_view().data)


def _relative_error(matrix: torch.Tensor, quantized: QuantizedWeight) -> float:
    difference = total = 0.0
    step = max(1, (1 << 22) // max(matrix.shape[1], 1))
    for first in range(0, matrix.shape[0], step):
        part = slice(first, first + step)
        exact = matrix[part].float()
        zero = None if quantized.zero_point is None else quantized.zero_point[part]
        piece = QuantizedWeight(quantized.values[part], quantized.scale[part], zero, quantized.bits)
        difference += float((piece.dequantize() - exact).square().sum())
        total += float(exact.square().sum())
    return float((difference / total) ** 0.5) if total else 0.0


def _decompressed(weight: QuantizedWeight, shape: tuple[int, ...], name: str) -> ov.Output:
    groups = weight.groups
    signed = weight.zero_point is None
    kind = {8: ov.Type.i8 if signed else ov.Type.u8, 4: ov.Type.i4 if signed else ov.Type.u4}
    element = kind[weight.bits]
    is_grouped = groups > 1
    packed = _packed_constant(weight.values, element, is_grouped)
    packed.set_friendly_name(f"{name}/{element.get_type_name()}")
    value = ops.convert(packed, ov.Type.f32)
    if weight.zero_point is not None:
        zero = _packed_constant(weight.zero_point, element, is_grouped)
        value = ops.subtract(value, ops.convert(zero, ov.Type.f32))
    scale = weight.scale if is_grouped else weight.scale[:, 0]
    value = ops.multiply(value, ops.constant(scale.numpy()))
    if is_grouped:
        value = ops.reshape(value, ops.constant(list(shape), ov.Type.i64), False)
    value.set_friendly_name(f"{name}/decompressed")
    return value.output(0)


def _packed_constant(values: torch.Tensor, element: ov.Type, is_grouped: bool) -> ov.Node:
    kept = values if is_grouped else values[:, 0]
    shape = ov.Shape(list(kept.shape))
    flat = values.reshape(-1)
    if element in (ov.Type.u4, ov.Type.i4):
        if flat.numel() % 2:
            flat = torch.cat([flat, flat.new_zeros(1)])
        nibbles = flat.view(torch.uint8) & 0xF
        flat = nibbles[0::2] | (nibbles[1::2] << 4)
    # A copy: the constant holds no reference to the memory behind the tensor.
    return ov.op.Constant(ov.Tensor(flat.contiguous().numpy(), shape, element), shared_memory=False)


def _replace_product(product: ov.Node, weight: ov.Output) -> None:
    element = product.get_output_element_type(0)
    is_float32 = element == ov.Type.f32
    first = product.input_value(0)
    left = first if is_float32 else ops.convert(first, ov.Type.f32).output(0)
    transpose_a = bool(product.get_attributes()["transpose_a"])
    new = ops.matmul(left, weight, transpose_a, True)
    new.set_friendly_name(product.get_friendly_name())
    result = new if is_float32 else ops.convert(new, element)
    product.output(0).replace(result.output(0))


def _replace_gather(gather: ov.Node, weight: ov.Output) -> None:
    element = gather.get_output_element_type(0)
    new = ops.gather(weight, gather.input_value(1), gather.input_value(2))
    new.set_friendly_name(gather.get_friendly_name())
    result = new if element == ov.Type.f32 else ops.convert(new, element)
    gather.output(0).replace(result.output(0))


def _size_bytes(weight: QuantizedWeight) -> int:
    per_byte = 8 // weight.bits
    size = weight.values.numel() // per_byte + weight.scale.numel() * 4
    if weight.zero_point is not None:
        size += -(-weight.zero_point.numel() // per_byte)
    return size
