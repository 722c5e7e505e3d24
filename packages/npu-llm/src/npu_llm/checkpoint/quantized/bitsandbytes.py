"""bitsandbytes' formats: 8 bits with a scale per output, and 4 bits with a value table.

Layout of 4 bits (bitsandbytes.functional.QuantState): two values to a byte, the first in the high
half; `absmax` for each block, which may be quantized itself; and the rest as JSON bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from npu_llm.checkpoint.file_headers import TensorSpec
from npu_llm.checkpoint.quantized.encoded import (
    EncodedWeight,
    IntegerWeight,
    Read,
    elements_of,
    incomplete,
    parts_of,
    unreadable,
)

__all__ = ["find"]

_STATE = ".quant_state.bitsandbytes__"
_SCB = "SCB"
_TABLE = "kernels have no value table for 4 bits"


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
        ModelError: [quantization-parts] for inconsistent tensors.
    """
    for name in headers:
        if _STATE in name:
            weight = name.partition(_STATE)[0]
            yield _of_4_bits(weight, name, headers, read)
        elif name.endswith(f".{_SCB}"):
            yield _of_8_bits(name.removesuffix(_SCB), headers)


def _of_8_bits(base: str, headers: Mapping[str, TensorSpec]) -> EncodedWeight:
    parts = parts_of(
        base, headers, {"weight": "weight", "scale": _SCB}, {"layout": "weight_format"}
    )
    shape = headers[parts["weight"]].shape
    if len(shape) != 2 or headers[parts["scale"]].shape != shape[:1]:
        raise incomplete(base, f"weight {shape}, SCB {headers[parts['scale']].shape}")

    def decode(read_part: Read) -> IntegerWeight:
        if "layout" in parts and int(read_part("layout")) != 0:
            raise unreadable("bitsandbytes' 8 bits, tiled for a GPU")
        scale = read_part("scale").float() / 127
        return IntegerWeight(read_part("weight")[:, None], scale[:, None, None], None, 8)

    return EncodedWeight(
        name=parts["weight"],
        shape=shape,
        parts=parts,
        decode=decode,
        bits=8,
        form="8 bits with a scale per output",
    )


def _of_4_bits(
    weight: str,
    state: str,
    headers: Mapping[str, TensorSpec],
    read: Callable[[str], torch.Tensor],
) -> EncodedWeight:
    parts = parts_of(
        weight,
        headers,
        {"weight": "", "absmax": ".absmax", "table": ".quant_map"},
        {"nested": ".nested_absmax", "nested_table": ".nested_quant_map"},
    )
    parts["state"] = state
    about = json.loads(bytes(read(state).tolist()))
    shape = tuple(int(size) for size in about["shape"])
    block, elements = int(about["blocksize"]), elements_of(shape)
    if elements_of(headers[weight].shape) != -(-elements // 2):
        raise incomplete(weight, f"{headers[weight].shape} bytes for {shape} values")

    def decode(read_part: Read) -> torch.Tensor:
        packed = read_part("weight").view(torch.uint8).flatten()
        indices = torch.stack([packed >> 4, packed & 15], -1).flatten()[:elements]
        scale = read_part("absmax")
        if "nested" in parts:
            inner, size = read_part("nested").float(), int(about["nested_blocksize"])
            codes = read_part("nested_table").float()[scale.long()]
            scale = codes * inner.repeat_interleave(size)[: len(codes)] + about["nested_offset"]
        values = read_part("table").float()[indices.long()]
        spread = scale.float().repeat_interleave(block)[:elements]
        return (values * spread).view(shape)

    return EncodedWeight(
        name=weight,
        shape=shape,
        parts=parts,
        decode=decode,
        form=f"{about.get('quant_type', '4 bits')} in blocks of {block}",
        why_floats=_TABLE,
    )
