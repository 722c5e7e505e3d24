"""GPTQ's format: integers packed along the inputs, in groups that an index may permute.

Layout: AutoGPTQ and GPTQModel (qlinear modules): `qweight` (inputs * bits / 32, outputs) int32,
`qzeros` (groups, outputs * bits / 32) int32, `scales` (groups, outputs), `g_idx` (inputs,), each
a dense stream of bits along its packed axis. The first version stores zero points less one.
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

_FORMATS = {"gptq": 1, "gptq_v2": 0}  # added to the stored zero points
_BITS = (2, 3, 4, 8)


def find(config: Mapping[str, Any], headers: Mapping[str, TensorSpec]) -> Iterator[EncodedWeight]:
    """Yields the quantized weights of a checkpoint.

    Raises:
        ModelError: [quantization-form] for another GPTQ format, [quantization-parts] for
            inconsistent tensors.
    """
    layout = str(config.get("checkpoint_format") or config.get("format") or "gptq").lower()
    if layout not in _FORMATS:
        raise unreadable(f"GPTQ in the format {layout!r}")
    for base in packed_layers(headers):
        yield _weight(base, config, headers, _FORMATS[layout])


def _weight(
    base: str, config: Mapping[str, Any], headers: Mapping[str, TensorSpec], offset: int
) -> EncodedWeight:
    parts = parts_of(base, headers, WORDS, {"index": ".g_idx"})
    (words, outputs), zeros, scales = (headers[parts[role]].shape for role in WORDS)
    bits = zeros[1] * 32 // max(outputs, 1)
    if bits not in _BITS or scales[1] != outputs or scales[0] != zeros[0]:
        raise incomplete(base, f"qweight {(words, outputs)}, qzeros {zeros}, scales {scales}")
    inputs, groups = words * 32 // bits, scales[0]
    size = _group_size(config, inputs, groups)
    if size is None and "index" not in parts:
        raise incomplete(base, f"{groups} groups of {inputs} inputs, without g_idx")
    is_ordered = bool(config.get("desc_act")) and "index" in parts and groups > 1

    def decode(read: Read) -> IntegerWeight | torch.Tensor:
        values = unpack_bits(read("weight").t(), bits=bits, count=inputs)
        zero = unpack_bits(read("zeros"), bits=bits, count=outputs).t().to(torch.int16) + offset
        scale = read("scales").float().t()
        index = read("index").long() if "index" in parts else torch.arange(inputs) // (size or 1)
        is_plain = inputs % groups == 0 and torch.equal(
            index, torch.arange(inputs) // (inputs // groups)
        )
        if is_plain:
            return IntegerWeight(grouped(values, groups), scale[..., None], zero[..., None], bits)
        if len(index) != inputs or not 0 <= int(index.min()) <= int(index.max()) < groups:
            raise incomplete(base, f"g_idx does not name {groups} groups")
        return (values - zero[:, index]) * scale[:, index]

    return EncodedWeight(
        name=f"{base}.weight",
        shape=(outputs, inputs),
        parts=parts,
        decode=decode,
        bits=bits,
        form=f"{bits} bits in groups of {size or inputs // groups}",
        why_floats="its groups are in the order of activations" if is_ordered else None,
    )


def _group_size(config: Mapping[str, Any], inputs: int, groups: int) -> int | None:
    """Returns the number of inputs per scale; None if only the index determines it."""
    asked = config.get("group_size")
    for size in (asked, inputs // groups if inputs % groups == 0 else None):
        if isinstance(size, int) and size > 0 and -(-inputs // size) == groups:
            return size
    return None
