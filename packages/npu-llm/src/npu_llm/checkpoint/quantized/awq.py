"""AWQ's formats "gemm" and "gemv": 4-bit integers, eight to a word, with zero points.

Layout: AutoAWQ (modules.linear). "gemm": `qweight` (inputs, outputs / 8), `qzeros` (groups, outputs
/ 8), `scales` (groups, outputs), with adjacent values in the order 0, 2, 4, 6, 1, 3, 5, 7. "gemv":
`qweight` (outputs, inputs / 8), and zeros and scales (outputs, padded groups), in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from npu_llm.checkpoint.file_headers import TensorSpec
from npu_llm.checkpoint.quantized.encoded import (
    WORDS,
    EncodedWeight,
    IntegerWeight,
    Read,
    grouped,
    incomplete,
    packed_layers,
    parts_of,
    unpack_bits,
    unreadable,
)

__all__ = ["find"]

_BITS, _PER_WORD = 4, 8
# Output k of eight is in this nibble of "gemm"'s words.
_PLACES = torch.tensor((0, 4, 1, 5, 2, 6, 3, 7))


def find(config: Mapping[str, Any], headers: Mapping[str, TensorSpec]) -> Iterator[EncodedWeight]:
    """Yields the quantized weights of a checkpoint.

    Raises:
        ModelError: [quantization-form] for another version or bit width, [quantization-parts] for
            inconsistent tensors.
    """
    version = str(config.get("version") or config.get("format") or "gemm").lower()
    bits = config.get("bits") or config.get("w_bit") or _BITS
    if version not in ("gemm", "gemv") or bits != _BITS:
        raise unreadable(f"AWQ's version {version!r} in {bits} bits")
    make = _gemm if version == "gemm" else _gemv
    for base in packed_layers(headers):
        yield make(base, config, headers)


def _gemm(base: str, config: Mapping[str, Any], headers: Mapping[str, TensorSpec]) -> EncodedWeight:
    parts = parts_of(base, headers, WORDS)
    weight, zeros, scales = (headers[parts[role]].shape for role in WORDS)
    (inputs, words), (groups, outputs) = weight, scales
    if words * _PER_WORD != outputs or zeros != (groups, words) or inputs % groups:
        raise incomplete(base, f"qweight {weight}, qzeros {zeros}, scales {scales}")

    def decode(read: Read) -> IntegerWeight:
        values = _in_order(read("weight"), outputs).t().contiguous()
        zero = _in_order(read("zeros"), outputs).t()
        scale = read("scales").float().t()
        return IntegerWeight(grouped(values, groups), scale[..., None], zero[..., None], _BITS)

    return _made(base, parts, outputs, inputs, groups, decode)


def _in_order(words: torch.Tensor, count: int) -> torch.Tensor:
    nibbles = unpack_bits(words, bits=_BITS, count=count).view(len(words), -1, _PER_WORD)
    return nibbles[..., _PLACES].flatten(1)


def _gemv(base: str, config: Mapping[str, Any], headers: Mapping[str, TensorSpec]) -> EncodedWeight:
    parts = parts_of(base, headers, WORDS)
    weight, zeros, scales = (headers[parts[role]].shape for role in WORDS)
    outputs, inputs = weight[0], weight[1] * _PER_WORD
    size = config.get("group_size") or config.get("q_group_size") or inputs
    size = inputs if size == -1 else int(size)
    groups = inputs // size
    has_room = zeros[1] * _PER_WORD >= groups and scales[1] >= groups
    if zeros[0] != outputs or scales[0] != outputs or inputs % size or not has_room:
        raise incomplete(base, f"qweight {weight}, qzeros {zeros}, scales {scales}")

    def decode(read: Read) -> IntegerWeight:
        values = unpack_bits(read("weight"), bits=_BITS, count=inputs)
        zero = unpack_bits(read("zeros"), bits=_BITS, count=groups)
        scale = read("scales")[:, :groups].float()
        return IntegerWeight(grouped(values, groups), scale[..., None], zero[..., None], _BITS)

    return _made(base, parts, outputs, inputs, groups, decode)


def _made(
    base: str, parts: dict[str, str], outputs: int, inputs: int, groups: int, decode: Any
) -> EncodedWeight:
    return EncodedWeight(
        name=f"{base}.weight",
        shape=(outputs, inputs),
        parts=parts,
        decode=decode,
        bits=_BITS,
        form=f"{_BITS} bits in groups of {inputs // groups}",
    )
