"""optimum-quanto's format: integers or float8 with a scale per output, and packed groups.

Layout (optimum.quanto.tensor): `weight._data` and `weight._scale` of 8 bits; of 4 and 2 bits
`weight._data._data` (a byte holds one row of each half or quarter of the rows of groups),
`weight._scale` and `weight._shift`. Sizes of packed weights are those of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from npu_llm.checkpoint.file_headers import TensorSpec
from npu_llm.checkpoint.quantized.encoded import (
    EncodedWeight,
    IntegerWeight,
    Read,
    incomplete,
    parts_of,
)

__all__ = ["find"]

_PLAIN, _PACKED = "._data", "._data._data"
_FLOAT8 = ("F8_E4M3", "F8_E5M2")


def find(headers: Mapping[str, TensorSpec]) -> Iterator[EncodedWeight]:
    """Yields the quantized weights of a checkpoint.

    Raises:
        ModelError: [quantization-parts] for inconsistent tensors.
    """
    for name in headers:
        if name.endswith(_PACKED):
            yield _packed(name.removesuffix(_PACKED), headers)
        elif name.endswith(_PLAIN):
            yield _plain(name.removesuffix(_PLAIN), headers)


def _plain(name: str, headers: Mapping[str, TensorSpec]) -> EncodedWeight:
    parts = parts_of(name, headers, {"weight": _PLAIN, "scale": "._scale"})
    weight, scale = headers[parts["weight"]], headers[parts["scale"]].shape
    if len(weight.shape) != 2 or scale not in ((), (1,), (weight.shape[0], 1)):
        raise incomplete(name, f"_data {weight.shape}, _scale {scale}")
    is_float = weight.dtype in _FLOAT8

    def decode(read: Read) -> IntegerWeight | torch.Tensor:
        scales = read("scale").float().reshape(-1, 1)
        if is_float:
            return read("weight").float() * scales
        scales = scales.expand(weight.shape[0], 1)
        return IntegerWeight(read("weight")[:, None], scales[..., None], None, 8)

    return EncodedWeight(
        name=name,
        shape=weight.shape,
        parts=parts,
        decode=decode,
        bits=0 if is_float else 8,
        form=f"{'float8' if is_float else '8 bits'} with a scale per output",
        why_floats="kernels do not support float8" if is_float else None,
    )


def _packed(name: str, headers: Mapping[str, TensorSpec]) -> EncodedWeight:
    parts = parts_of(name, headers, {"weight": _PACKED, "scale": "._scale", "shift": "._shift"})
    rows, size = headers[parts["weight"]].shape
    groups = headers[parts["scale"]].shape[0]
    each = next((one for one in (2, 4) if rows == -(-groups // one)), 0)
    if not each:
        raise incomplete(name, f"{rows} packed rows for {groups} groups")
    bits = 8 // each

    def decode(read: Read) -> torch.Tensor:
        packed = read("weight")
        values = torch.cat([(packed >> (bits * at)) & ((1 << bits) - 1) for at in range(each)])
        values, scale, shift = values[:groups].float(), read("scale").float(), read("shift")
        if shift.is_floating_point():
            return values * scale - shift.float()
        return (values - shift.float()) * scale

    return EncodedWeight(
        name=name,
        shape=None,
        count=groups * size,
        parts=parts,
        decode=decode,
        form=f"{bits} bits in groups of {size}",
        why_floats="its zero points are floats",
    )
