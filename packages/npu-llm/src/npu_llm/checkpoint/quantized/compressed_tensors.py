"""compressed-tensors' formats: packed or plain integers, float8, and 4-bit floats.

Layout: compressed_tensors.compressors. "pack-quantized": `weight_packed` (outputs, words) int32
holds the integers plus half of their range; before version 0.16 no integer crossed a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from npu_llm.checkpoint.file_headers import TensorSpec
from npu_llm.checkpoint.quantized import float8
from npu_llm.checkpoint.quantized.encoded import (
    EncodedWeight,
    IntegerWeight,
    Read,
    elements_of,
    grouped,
    incomplete,
    parts_of,
    unpack_bits,
    unreadable,
)

__all__ = ["ACTIVATIONS", "find"]

_PACKED = "weight_packed"
_SCALE = "weight_scale"
_FORMATS = {
    "pack-quantized", "int-quantized", "naive-quantized", "float-quantized",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision", "dense",
}  # fmt: skip
# Tensors for quantized activations and caches, which stay floats here.
ACTIVATIONS = (
    "input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point",
    "k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point",
)  # fmt: skip
# Values of 4-bit floats with 2 exponent bits and 1 mantissa bit, by code.
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_E2M1 = torch.cat([_E2M1, -_E2M1])


def find(
    config: Mapping[str, Any],
    headers: Mapping[str, TensorSpec],
    read: Callable[[str], torch.Tensor],
) -> Iterator[EncodedWeight]:
    """Yields the quantized weights of a checkpoint.

    Args:
        config: the quantization config.
        headers: headers of the tensors.
        read: reads a tensor that describes others.

    Raises:
        ModelError: [quantization-form] for another format, [quantization-parts] for inconsistent
            tensors.
    """
    groups = list((config.get("config_groups") or {}).values())
    layouts = {config.get("format"), *(one.get("format") for one in groups)} - {None}
    if others := sorted(layouts - _FORMATS):
        raise unreadable(f"compressed-tensors in the format {others[0]!r}")
    sparsity = (config.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise unreadable(f"compressed-tensors with sparse weights, {sparsity!r}")
    if (config.get("transform_config") or {}).get("config_groups"):
        raise unreadable("compressed-tensors with rotations (transform_config)")
    bits = {one["weights"]["num_bits"] for one in groups if one.get("weights")}
    for name, tensor in headers.items():
        base, _, last = name.rpartition(".")
        if last == _PACKED and tensor.dtype == "I32":
            yield _packed(f"{base}.", headers, read, bits)
        elif last == _PACKED:
            yield _floats_of_4_bits(f"{base}.", headers)
        elif tensor.dtype == "I8" and f"{name}_scale" in headers:
            yield _plain(f"{base}.", last, headers)
    yield from float8.find(_with_block(groups), headers)


def _with_block(groups: list[Any]) -> dict[str, Any]:
    blocks = [(one.get("weights") or {}).get("block_structure") for one in groups]
    found = next((one for one in blocks if isinstance(one, list)), None)
    return {} if found is None else {"weight_block_size": found}


def _packed(
    base: str,
    headers: Mapping[str, TensorSpec],
    read: Callable[[str], torch.Tensor],
    bits_of: set[int],
) -> EncodedWeight:
    parts = parts_of(
        base,
        headers,
        {"weight": _PACKED, "scale": _SCALE, "shape": "weight_shape"},
        {"zero": "weight_zero_point", "index": "weight_g_idx"},
    )
    outputs, inputs = (int(size) for size in read(parts["shape"]))
    words = headers[parts["weight"]].shape
    candidates = [one for one in sorted(bits_of) if _words(inputs, one) & {words[1]}]
    if len(candidates) != 1 or words[0] != outputs:
        raise incomplete(base, f"{words} words for {(outputs, inputs)} of {sorted(bits_of)} bits")
    bits, middle = candidates[0], 1 << (candidates[0] - 1)
    scale = headers[parts["scale"]].shape
    groups = scale[1] if len(scale) == 2 else 1
    if scale[0] != outputs or inputs % groups:
        raise incomplete(base, f"weight_scale {scale} for {(outputs, inputs)}")

    def decode(read_part: Read) -> IntegerWeight | torch.Tensor:
        values = _unpacked(read_part("weight"), bits, inputs)
        scales = read_part("scale").float().view(outputs, groups)
        zero = torch.full((outputs, groups), middle, dtype=torch.int16)
        if "zero" in parts:
            zero = _zeros(read_part("zero"), bits, outputs, groups)
        index = read_part("index").long() if "index" in parts else None
        if index is not None and bool((index >= 0).all()):  # -1 means no index
            return (values.to(torch.int16) - zero[:, index]) * scales[:, index]
        return IntegerWeight(grouped(values, groups), scales[..., None], zero[..., None], bits)

    return EncodedWeight(
        name=f"{base}weight",
        shape=(outputs, inputs),
        parts=parts,
        decode=decode,
        bits=bits,
        form=f"{bits} bits in groups of {inputs // groups}",
        why_floats="its groups are in the order of activations" if "index" in parts else None,
    )


def _words(count: int, bits: int) -> set[int]:
    """Returns the number of words for some integers, packed densely or one per word."""
    return {-(-count * bits // 32), -(-count // (32 // bits))}


def _unpacked(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    if words.shape[1] == -(-count * bits // 32):
        return unpack_bits(words, bits=bits, count=count)
    shifts = torch.arange(32 // bits, dtype=torch.int32) * bits
    fields = (words[..., None] >> shifts) & ((1 << bits) - 1)
    return fields.flatten(1)[:, :count].to(torch.uint8)


def _zeros(stored: torch.Tensor, bits: int, outputs: int, groups: int) -> torch.Tensor:
    """Returns zero points (outputs, groups) of unsigned integers."""
    if stored.dtype is torch.int32:
        return _unpacked(stored.t().contiguous(), bits, outputs).t().to(torch.int16)
    return stored.view(outputs, groups).to(torch.int16) + (1 << (bits - 1))


def _plain(base: str, last: str, headers: Mapping[str, TensorSpec]) -> EncodedWeight:
    parts = parts_of(
        base, headers, {"weight": last, "scale": f"{last}_scale"}, {"zero": f"{last}_zero_point"}
    )
    shape, scale = headers[parts["weight"]].shape, headers[parts["scale"]].shape
    groups = scale[1] if len(scale) == 2 else 1
    is_one = elements_of(scale) == 1
    if len(shape) != 2 or not (is_one or scale[0] == shape[0]) or shape[1] % groups:
        raise incomplete(base, f"{last} {shape}, its scale {scale}")

    def of_groups(value: torch.Tensor) -> torch.Tensor:
        return value.reshape(-1, groups, 1).expand(shape[0], groups, 1)

    def decode(read_part: Read) -> IntegerWeight:
        zero = of_groups(read_part("zero")) if "zero" in parts else None
        scales = of_groups(read_part("scale").float())
        return IntegerWeight(grouped(read_part("weight"), groups), scales, zero, 8)

    what = "with a scale per output" if groups == 1 else f"in groups of {shape[1] // groups}"
    return EncodedWeight(
        name=parts["weight"],
        shape=shape,
        parts=parts,
        decode=decode,
        bits=8,
        form=f"8 bits {what}",
        why_floats=None if groups == 1 else "kernels support 8 bits with a scale per output only",
    )


def _floats_of_4_bits(base: str, headers: Mapping[str, TensorSpec]) -> EncodedWeight:
    parts = parts_of(
        base, headers, {"weight": _PACKED, "scale": _SCALE}, {"whole": "weight_global_scale"}
    )
    outputs, pairs = headers[parts["weight"]].shape
    groups = headers[parts["scale"]].shape[1]
    is_exponent = headers[parts["scale"]].dtype in ("U8", "F8_E8M0")

    def decode(read_part: Read) -> torch.Tensor:
        packed = read_part("weight")
        codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1)
        scale = read_part("scale")
        if is_exponent:
            scale = torch.exp2(scale.view(torch.uint8).float() - 127)
        scale = scale.float()
        if "whole" in parts:
            scale = scale / read_part("whole").float()
        return (grouped(_E2M1[codes.long()], groups) * scale[..., None]).flatten(1)

    return EncodedWeight(
        name=f"{base}weight",
        shape=(outputs, pairs * 2),
        parts=parts,
        decode=decode,
        form=f"4-bit floats in groups of {pairs * 2 // groups}",
        why_floats="kernels have no 4-bit floats",
    )
