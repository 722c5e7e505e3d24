"""Replaces weights of matrix products in an OpenVINO model by compressed weights.

The arithmetic is in npu_compiler.quantize.weights. The CPU plugin of OpenVINO 2026.4.1 recognizes
this pattern: Constant u8/i8/u4/i4 -> Convert f32 -> Subtract -> Multiply -> Reshape -> MatMul in
float32. It would unpack the same pattern in bfloat16 when the model is compiled, so the product is
in float32 between two casts, which the plugin removes.
"""

from __future__ import annotations

from collections.abc import Callable
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
from npu_runtime.public_calls import public_call

__all__ = [
    "CompressedWeight",
    "CompressionReport",
    "WeightUses",
    "compress_weights",
    "replace_weight",
    "weight_uses",
]

_FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class CompressedWeight:
    """One compressed weight.

    Attributes:
        name: friendly name of the constant.
        shape: as (output channels, inputs).
        mode: int8 or int4.
        group_size: number of inputs that share a scale; None for one scale per output channel.
        size_before_bytes, size_after_bytes: without and with scales and zero points.
        relative_error: norm of the difference divided by the norm of the weight.
        is_transposed: whether the constant was (output channels, inputs).
    """

    name: str
    shape: tuple[int, int]
    mode: str
    group_size: int | None
    size_before_bytes: int
    size_after_bytes: int
    relative_error: float
    is_transposed: bool


@dataclass(frozen=True)
class CompressionReport:
    """Result of compress_weights.

    Attributes:
        weights: compressed weights, in the order of the model.
        skipped: constant name -> reason for keeping its precision.
    """

    weights: tuple[CompressedWeight, ...]
    skipped: dict[str, str]

    @property
    def size_before_bytes(self) -> int:
        """Size in bytes before compression."""
        return sum(weight.size_before_bytes for weight in self.weights)

    @property
    def size_after_bytes(self) -> int:
        """Size in bytes after compression."""
        return sum(weight.size_after_bytes for weight in self.weights)

    def __str__(self) -> str:
        ratio = self.size_before_bytes / max(self.size_after_bytes, 1)
        return (
            f"{len(self.weights)} weights compressed {ratio:.1f}x, from "
            f"{self.size_before_bytes / 1e6:.1f} MB to {self.size_after_bytes / 1e6:.1f} MB; "
            f"{len(self.skipped)} kept"
        )


@public_call
def compress_weights(
    model: ov.Model,
    *,
    mode: str,
    group_size: int | None = 64,
    symmetric: bool = False,
    min_elements: int = 4096,
    read: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> CompressionReport:
    """Compresses constants that are the second factor of a MatMul, in place.

    A constant that a Gather also reads (an embedding tied to the head) becomes int8 per row for
    both, also in mode int4, because the head decides the next token. Rows that no group size up to
    group_size divides become int8 as well; see fitting_group.

    Args:
        model: changed in place. Memory of weights whose users have all changed is no longer needed.
        mode: "int8" (one scale per output channel) or "int4" (one per group).
        group_size: 32, 64 or 128, or None for one scale per output channel; for int4.
        symmetric: omit zero points: slightly smaller, slightly less exact.
        min_elements: smaller constants keep their precision.
        read: returns the values, in any float dtype, of the tensor over a constant's memory, for
            constants that represent weights stored elsewhere.

    Raises:
        OptionError: [quantize-mode] or [quantize-group] for a value that is not listed above.
    """
    if mode not in MODES:
        raise OptionError(
            f"compress_weights: `mode` must be one of {', '.join(MODES)}, got {mode!r}. Choose "
            "one.",
            code="quantize-mode",
        )
    if group_size not in (*GROUP_SIZES, None):
        raise OptionError(
            "compress_weights: `group_size` must be one of 32, 64, 128, or None, got "
            f"{group_size!r}. "
            "Choose one.",
            code="quantize-group",
        )
    done: list[CompressedWeight] = []
    skipped: dict[str, str] = {}
    for uses in weight_uses(model, read=read):
        if not uses.products:
            continue  # an embedding that is not a head stays: only single rows of it are read
        if uses.elements < min_elements:
            skipped[uses.name] = f"{uses.elements} elements are less than {min_elements}"
            continue
        group = fitting_group(uses.columns, group_size) if mode == "int4" else None
        if uses.gathers:
            group = None
        quantized = quantize_weight(
            uses.matrix(), bits=8 if group is None else 4, group_size=group, symmetric=symmetric
        )
        done.append(replace_weight(uses, quantized))
    model.validate_nodes_and_infer_types()
    return CompressionReport(tuple(done), skipped)


@dataclass(frozen=True)
class WeightUses:
    """A constant, and the nodes that read it in one layout."""

    constant: ov.Node  # a matrix of floats
    products: tuple[ov.Node, ...]  # products with it as second factor, in the order of the model
    gathers: tuple[ov.Node, ...]  # nodes that read rows of it
    is_transposed: bool  # whether it is (output channels, inputs)
    read: Callable[[torch.Tensor], torch.Tensor] | None = None  # see compress_weights

    @property
    def name(self) -> str:
        """Friendly name of the constant."""
        return str(self.constant.get_friendly_name())

    @property
    def elements(self) -> int:
        """Number of elements."""
        rows, columns = self.constant.get_output_shape(0)
        return int(rows * columns)

    @property
    def columns(self) -> int:
        """Number of inputs of the products, or length of the gathered rows."""
        return int(self.constant.get_output_shape(0)[1 if self.is_transposed else 0])

    def matrix(self) -> torch.Tensor:
        """Returns it as (output channels, inputs), without a copy for types that numpy has."""
        weight = _tensor(self.constant)
        if self.read is not None:
            weight = self.read(weight)
        return weight if self.is_transposed else weight.t()


def weight_uses(
    model: ov.Model, *, read: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> list[WeightUses]:
    """Returns matrices that products or embeddings read, in the order of the model."""
    found: list[WeightUses] = []
    nodes = model.get_ordered_ops()
    position = {node.get_instance_id(): at for at, node in enumerate(nodes)}
    for node in nodes:
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
            shared = tuple(gathers) if is_transposed else ()
            if products or shared:
                products.sort(key=lambda product: position[product.get_instance_id()])
                found.append(WeightUses(node, tuple(products), shared, is_transposed, read))
    return found


def _axis_of(gather: ov.Node) -> int | None:
    source = gather.input_value(2).get_node()
    return int(source.get_data().item()) if source.get_type_name() == "Constant" else None


def replace_weight(uses: WeightUses, quantized: QuantizedWeight) -> CompressedWeight:
    """Makes the users of a constant read integers instead."""
    matrix = uses.matrix()
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
        mode=f"int{quantized.bits}",
        group_size=quantized.values.shape[2] if quantized.bits == 4 else None,
        size_before_bytes=size_before,
        size_after_bytes=_size_bytes(quantized),
        relative_error=error,
        is_transposed=uses.is_transposed,
    )


def _tensor(constant: ov.Node) -> torch.Tensor:
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
    # A copy, because the constant does not keep the tensor's memory alive.
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
