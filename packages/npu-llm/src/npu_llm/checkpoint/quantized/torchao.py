"""torchao's format: tensors with classes and parts described by a file's metadata.

Layout (torchao.prototype.safetensors, which transformers writes by): the parts of `a.weight` are
`a._weight_qdata`, `a._weight_scale` and so on; the metadata has its class and attributes as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from npu_llm.checkpoint.file_headers import TensorSpec
from npu_llm.checkpoint.quantized.encoded import (
    AffineWeight,
    Decode,
    EncodedWeight,
    IntegerWeight,
    Read,
    grouped,
    incomplete,
    parts_of,
    unreadable,
    why_not_blocks,
)

__all__ = ["find"]

_PLAIN = ("Tensor", "Parameter")
_OPTIONAL = ("zero_point", "scale_and_zero", "act_pre_scale", "act_quant_scale",
             "act_quant_zero_point", "per_tensor_scale")  # fmt: skip
_WHY_FLOAT8 = "kernels do not support float8"
_WHY_8_BITS = "kernels support 8 bits with a scale per output only"
# Of tiles for tensor cores: 8 outputs, whose 16 inputs four lanes share.
_TILE_OUTPUTS, _LANES = 8, 4


@dataclass(frozen=True)
class _Description:
    """A weight's name, parts, attributes, and the headers of its parts by role."""

    name: str
    parts: Mapping[str, str]
    about: Mapping[str, Any]
    headers: Mapping[str, TensorSpec]

    @property
    def group(self) -> int | None:
        """Number of inputs per scale; None for blocks over several outputs."""
        match self.about.get("block_size"):
            case [1, int(size)] if size > 0:
                return size
        return None

    def shape(self, role: str) -> tuple[int, ...]:
        if role not in self.headers:
            raise incomplete(self.name, f"{role} is missing")
        return self.headers[role].shape


def find(metadata: Mapping[str, str], headers: Mapping[str, TensorSpec]) -> Iterator[EncodedWeight]:
    """Yields the quantized weights of a checkpoint.

    Args:
        metadata: metadata of the safetensors files.
        headers: headers of the tensors.

    Raises:
        ModelError: [quantization-form] for an unsupported tensor class, [quantization-parts] for
            inconsistent tensors.
    """
    if not any("._" in name and name.endswith("_qdata") for name in headers):
        return
    if "tensor_names" not in metadata:
        raise unreadable("torchao without the metadata that describes its tensors")
    for name, text in metadata.items():
        described = _described(name, text, headers)
        if described is None:
            continue
        kind = described[1]
        if kind not in _READERS:
            raise unreadable(f"torchao's {kind} ({name})")
        weight = _READERS[kind](described[0])
        yield _with_inputs_scaled(weight) if "act_pre_scale" in weight.parts else weight


def _described(
    name: str, text: str, headers: Mapping[str, TensorSpec]
) -> tuple[_Description, str] | None:
    """Returns a weight and its class; None for an entry of a plain tensor or another object."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("_type") in (None, *_PLAIN):
        return None
    module, _, last = name.rpartition(".")
    base = f"{module}._{last}_"
    needed = {"qdata": "qdata"}
    parts = parts_of(base, headers, needed, {one: one for one in ("scale", *_OPTIONAL)})
    about = found.get("_data")
    own = {role: headers[part] for role, part in parts.items()}
    return (
        _Description(name, parts, about if isinstance(about, dict) else {}, own),
        str(found["_type"]),
    )


def _with_inputs_scaled(weight: EncodedWeight) -> EncodedWeight:
    """Returns a weight with scaled inputs, as floats that include the factors."""

    def decode(read: Read) -> torch.Tensor:
        found = weight.decode(read)
        values = found if isinstance(found, torch.Tensor) else found.floats()
        return values * read("act_pre_scale").float().reshape(-1)

    return replace(weight, decode=decode, bits=0, why_floats="its inputs are scaled as well")


def _float8(weight: _Description) -> EncodedWeight:
    shape, scale = weight.shape("qdata"), weight.shape("scale")
    if len(scale) not in (0, len(shape)) or any(
        size % max(count, 1) for size, count in zip(shape, scale, strict=False)
    ):
        raise incomplete(weight.name, f"qdata {shape}, scale {scale}")
    what = {1: "a tensor", shape[0]: "each output"}.get(max(1, *scale, 1), "blocks")

    def decode(read: Read) -> torch.Tensor:
        scales = read("scale").float()
        for axis, count in enumerate(scale):
            scales = scales.repeat_interleave(shape[axis] // count, axis)
        return read("qdata").float() * scales

    return _made(weight, shape, decode, f"float8 with a scale for {what}", _WHY_FLOAT8)


def _integers(weight: _Description) -> EncodedWeight:
    """Returns a weight of Int8Tensor or IntxUnpackedToInt8Tensor: one integer per byte."""
    shape, scale = weight.shape("qdata"), weight.shape("scale")
    target = weight.about.get("target_dtype")
    name = target.get("_data") if isinstance(target, dict) else "int8"
    bits = int(str(name).removeprefix("int")) if str(name).removeprefix("int").isdigit() else 8
    size = weight.group
    if size is None and scale in ((1, 1), (1,), ()):
        size = shape[-1]
    count = shape[-1] // size if size and shape[-1] % size == 0 else 0
    if len(shape) != 2 or scale not in ((shape[0], count), (1, 1), (1,), ()):
        raise incomplete(weight.name, f"qdata {shape}, scale {scale}")
    has_float_zeros = weight.headers.get("zero_point", TensorSpec("", "I8", ())).dtype != "I8"

    def decode(read: Read) -> IntegerWeight | torch.Tensor:
        def by_group(role: str) -> torch.Tensor:
            return (
                read(role)
                .reshape(-1, count if len(scale) == 2 else 1, 1)
                .expand(shape[0], count, 1)
            )

        zero = by_group("zero_point") if "zero_point" in weight.parts else None
        scales, values = by_group("scale").float(), grouped(read("qdata"), count)
        if zero is not None and zero.is_floating_point():
            return ((values - zero.float()) * scales).flatten(1)
        return IntegerWeight(values, scales, zero, bits)

    groups = "with a scale per output" if count == 1 else f"in groups of {size}"
    why = "its zero points are floats" if has_float_zeros else None
    if bits > 4 and (bits != 8 or count > 1):
        why = why or _WHY_8_BITS
    return _made(weight, shape, decode, f"{bits} bits {groups}", why, 0 if why else bits)


def _nibbles(weight: _Description) -> EncodedWeight:
    """Returns a weight of Int4Tensor: signed, the first in the low half, zero points as floats."""
    rows, pairs = (*weight.shape("qdata"), 0)[:2]
    shape, size = (rows, pairs * 2), weight.group
    groups = (-(-shape[1] // size) if size else 0, rows)
    if size is None or weight.shape("scale") != groups or weight.shape("zero_point") != groups:
        raise incomplete(weight.name, f"qdata {(rows, pairs)}, scale {weight.shape('scale')}")

    def decode(read: Read) -> AffineWeight | torch.Tensor:
        packed = read("qdata").view(torch.uint8)
        codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1) ^ 8
        scale, zero = (read(role).float().t()[..., None] for role in ("scale", "zero_point"))
        return _affine(codes, scale, zero, size)

    why = None if shape[1] % size == 0 else "its last groups are shorter"
    form = f"4 bits in groups of {size}"
    return _made(weight, shape, decode, form, why or why_not_blocks(4, size))


def _tiles(weight: _Description) -> EncodedWeight:
    """Returns a weight of Int4TilePackedTo4dTensor: tiles of a GPU's tensor cores, padded."""
    stored, both = weight.shape("qdata"), weight.shape("scale_and_zero")
    shape, size = weight.about.get("shape"), weight.group
    if len(stored) != 4 or not isinstance(shape, list) or len(shape) != 2 or size is None:
        raise incomplete(weight.name, f"qdata {stored}, shape {shape}")
    outputs, inputs = (int(one) for one in shape)
    padded = (stored[0] * _TILE_OUTPUTS, stored[1] * stored[3] * 32)
    if (
        both != (padded[1] // size, padded[0], 2)
        or stored[2] != _TILE_OUTPUTS * _LANES
        or outputs > padded[0]
        or inputs > padded[1]
    ):
        raise incomplete(weight.name, f"qdata {stored}, scale_and_zero {both} for {shape}")

    def decode(read: Read) -> AffineWeight | torch.Tensor:
        # A word has inputs 0, 8, 16, 24 of a lane, and then 1, 9, 17, 25.
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        fields = (read("qdata")[..., None] >> shifts) & 15
        tiles, wide, _, inner, _ = fields.shape
        split = fields.view(tiles, wide, _TILE_OUTPUTS, _LANES, inner, 2, 4)
        # tile, output; outer, inner, eighth, lane, pair element of the input
        codes = split.permute(0, 2, 1, 4, 6, 3, 5).reshape(padded).to(torch.uint8)
        scale, zero = read("scale_and_zero").float().unbind(-1)
        count = -(-inputs // size)
        scale, zero = (one.t()[:outputs, :count, None] for one in (scale, zero))
        return _affine(codes[:outputs, :inputs], scale, zero, size)

    why = None if inputs % size == 0 else "its last groups are shorter"
    form = f"4 bits in groups of {size}, in tiles"
    return _made(weight, (outputs, inputs), decode, form, why or why_not_blocks(4, size))


def _affine(
    codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, size: int
) -> AffineWeight | torch.Tensor:
    """Returns `(codes - 8) * scale + zero` for codes (outputs, inputs) from 0 to 15."""
    least = zero - 8 * scale
    if codes.shape[1] % size == 0:
        return AffineWeight(grouped(codes.contiguous(), scale.shape[1]), scale, least)
    spread = [one[..., 0].repeat_interleave(size, 1)[:, : codes.shape[1]] for one in (scale, least)]
    return codes * spread[0] + spread[1]


def _made(
    weight: _Description,
    shape: tuple[int, ...],
    decode: Decode,
    form: str,
    why_floats: str | None,
    bits: int = 0,
) -> EncodedWeight:
    return EncodedWeight(
        name=weight.name,
        shape=shape,
        parts=weight.parts,
        decode=decode,
        form=form,
        bits=bits,
        why_floats=why_floats,
    )


_READERS = {
    "Float8Tensor": _float8,
    "Int8Tensor": _integers,
    "IntxUnpackedToInt8Tensor": _integers,
    "Int4Tensor": _nibbles,
    "Int4TilePackedTo4dTensor": _tiles,
}
