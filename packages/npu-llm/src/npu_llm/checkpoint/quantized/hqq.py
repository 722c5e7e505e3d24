"""HQQ's format: integers in bytes, with a scale and a float zero point per group.

Layout (hqq.core.quantize, as transformers saves it): the matrix is (groups, group size), or its
transpose for axis 0. `W_q` packs it along the first axis, with the first part in the highest bits;
of 3 bits ten to a word. `scale` and `zero` are for each group, and small tensors describe the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from npu_llm.checkpoint.file_headers import TensorSpec
from npu_llm.checkpoint.quantized.encoded import (
    AffineWeight,
    EncodedWeight,
    Read,
    elements_of,
    incomplete,
    parts_of,
    unreadable,
    why_not_blocks,
)

__all__ = ["find"]

_VALUES = "W_q"
_NEEDED = {"weight": _VALUES, "scale": "scale", "zero": "zero"}
# Other tensors of a weight that describe it or its quantization.
_DESCRIPTIONS = (
    "nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float",
    "quant_scale", "quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict",
    "stores_quant_config", "channel_wise", "optimize", "round_zero",
)  # fmt: skip
_WORDS_OF_3_BITS = 10


def find(
    headers: Mapping[str, TensorSpec], read: Callable[[str], torch.Tensor]
) -> Iterator[EncodedWeight]:
    """Yields the quantized weights of a checkpoint.

    Args:
        headers: headers of the tensors.
        read: reads a tensor that describes others.

    Raises:
        ModelError: [quantization-form] for quantized scales, [quantization-parts] for inconsistent
            tensors.
    """
    for name in headers:
        if name.endswith(f".{_VALUES}"):
            yield _weight(name.removesuffix(_VALUES), headers, read)


def _weight(
    base: str, headers: Mapping[str, TensorSpec], read: Callable[[str], torch.Tensor]
) -> EncodedWeight:
    if f"{base}scale_q" in headers or f"{base}zero_q" in headers:
        raise unreadable("HQQ with quantized scales or zero points (quant_scale, quant_zero)")
    described = {name: name for name in _DESCRIPTIONS if base + name in headers}
    parts = parts_of(base, headers, _NEEDED, described)
    about = {name: read(base + name) for name in ("shape", "nbits", "axis") if name in described}
    if len(about) < 3:
        raise incomplete(base, "shape, nbits and axis must describe it")
    shape = tuple(int(size) for size in about["shape"])
    bits, axis = int(about["nbits"]), int(about["axis"])
    groups = elements_of(headers[parts["scale"]].shape)
    elements = elements_of(shape)
    if bits not in (1, 2, 3, 4, 8) or axis not in (0, 1):
        raise unreadable(f"HQQ of {bits} bits along axis {axis}")
    if not groups or elements % groups or elements_of(headers[parts["zero"]].shape) != groups:
        raise incomplete(base, f"{groups} scales for {shape}")
    size = elements // groups
    rows = size if axis == 0 else groups
    stored = headers[parts["weight"]]
    if stored.size_bytes != _packed_bytes(bits, rows, elements // rows):
        raise incomplete(base, f"W_q of {stored.size_bytes} bytes for {shape} of {bits} bits")
    is_grouped = axis == 1 and len(shape) == 2 and shape[1] % size == 0

    def decode(read_part: Read) -> AffineWeight | torch.Tensor:
        codes = _unpacked(read_part("weight"), bits, rows)
        scale, zero = read_part("scale").float(), read_part("zero").float()
        if not is_grouped:
            layout = (1, -1) if axis == 0 else (-1, 1)
            values: torch.Tensor = (codes - zero.view(layout)) * scale.view(layout)
            return values.view(shape)
        by_group = (shape[0], -1, 1)
        scale, zero = scale.view(by_group), zero.view(by_group)
        return AffineWeight(codes.view(shape[0], -1, size), scale, -zero * scale)

    return EncodedWeight(
        name=f"{base}weight",
        shape=shape,
        parts=parts,
        decode=decode,
        form=f"{bits} bits in groups of {size}",
        why_floats=why_not_blocks(bits, size)
        if is_grouped
        else "its groups are not of adjacent inputs",
    )


def _packed_bytes(bits: int, rows: int, columns: int) -> int:
    if bits == 3:
        return 4 * -(-rows // _WORDS_OF_3_BITS) * columns
    return rows * columns * bits // 8


def _unpacked(stored: torch.Tensor, bits: int, rows: int) -> torch.Tensor:
    """Returns the integers (rows, columns) in uint8."""
    each = _WORDS_OF_3_BITS if bits == 3 else 8 // bits
    kind = torch.int32 if bits == 3 else torch.uint8
    packed = stored.contiguous().view(kind)  # some are stored as floats
    mask = (1 << bits) - 1
    fields = [(packed >> (bits * (each - 1 - at))) & mask for at in range(each)]
    return torch.cat(fields)[:rows].to(torch.uint8)
