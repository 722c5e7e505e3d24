"""Dtypes under that library's names, with int4, and its conventions that warn once per process."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from npu_llm.errors import OptionError

__all__ = [
    "ConventionWarning",
    "NPUDtype",
    "bfloat16",
    "dtype_of",
    "float16",
    "float32",
    "float64",
    "int4",
    "int8",
    "int16",
    "int32",
    "int64",
    "warn_once",
]


@dataclass(frozen=True, eq=False, repr=False)
class NPUDtype:
    """A dtype.

    Attributes:
        name: its short name, such as fp16.
        bits: bits per element.
        min: smallest value.
        max: largest value.
        torch_dtype: torch's dtype; int8 for int4.
    """

    name: str
    bits: int
    min: float
    max: float
    torch_dtype: torch.dtype

    @property
    def is_floating_point(self) -> bool:
        """Whether it is a float dtype."""
        return self.torch_dtype.is_floating_point

    def __eq__(self, value: object) -> bool:
        """Whether another dtype of this library, torch or numpy is the same."""
        if isinstance(value, NPUDtype):
            return self.name == value.name
        if self.bits == 4 or not isinstance(value, torch.dtype | np.dtype | type):
            return False
        return self.torch_dtype is _torch_dtype(value)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


def dtype_of(dtype: Any) -> NPUDtype:
    """Returns the NPUDtype for a dtype of torch, numpy or this library.

    uint8 means int4: that library's byte arrays contain two 4-bit values each.

    Raises:
        OptionError: [unknown-dtype] for an unsupported dtype.
    """
    if isinstance(dtype, NPUDtype):
        return dtype
    kind = _torch_dtype(dtype)
    if kind is torch.uint8:
        return int4
    for known in _BY_TORCH:
        if known.torch_dtype is kind:
            return known
    raise OptionError(
        "intel_npu_acceleration_library: `dtype` must be one of "
        f"{', '.join(map(repr, _BY_TORCH))} or int4, got {dtype!r}. Pass one of these, such as "
        "numpy.float16.",
        code="unknown-dtype",
    )


def _torch_dtype(dtype: Any) -> Any:
    """Returns torch's dtype, or None if torch does not have it."""
    if isinstance(dtype, torch.dtype):
        return dtype
    try:
        return None if dtype is None else getattr(torch, np.dtype(dtype).name, None)
    except TypeError:
        return None


def _of(name: str, dtype: torch.dtype) -> NPUDtype:
    facts = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return NPUDtype(name, facts.bits, facts.min, facts.max, dtype)


float16 = _of("fp16", torch.float16)
bfloat16 = _of("bf16", torch.bfloat16)
float32 = _of("fp32", torch.float32)
float64 = _of("fp64", torch.float64)
int4 = NPUDtype("int4", 4, -8, 7, torch.int8)
int8 = _of("int8", torch.int8)
int16 = _of("int16", torch.int16)
int32 = _of("int32", torch.int32)
int64 = _of("int64", torch.int64)

_BY_TORCH = (float16, bfloat16, float32, float64, int8, int16, int32, int64)


_TEXTS = {
    "causal-mask": "is_causal ignores attention's mask; omit the mask, or add the "
    "causal one to it and pass is_causal=False",
    "float16": "linear layers compute in float16 for any float dtype",
    "index-keeps-axis": "tensor[0, :] of a graph keeps the axis, with one element; write "
    "tensor[0:1, :] to make this explicit, or reshape the result",
    "scale-root": "integer products divide by the square root of their inputs; pass scales "
    "multiplied by it, or use npu_ops.QMatMul, which does not divide",
    "tensor-to": "tensors stay on the host under .to('npu'); modules move",
}
# The warning refers to the line that called these.
_OURS = ("npu_llm.compat.", "npu_compiler.", "torch.")
_told: set[str] = set()


class ConventionWarning(UserWarning):
    """Warning about a convention of that library that differs from torch's."""


def warn_once(convention: str) -> None:
    """Warns about a convention on its first use in this process.

    Args:
        convention: a key of the table.
    """
    if convention in _told:
        return
    _told.add(convention)
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"intel_npu_acceleration_library: as there, {_TEXTS[convention]}.",
        ConventionWarning,
        stacklevel=level,
    )
