"""Conventions of that library that surprise: kept, and told of once per process."""

from __future__ import annotations

import sys
import warnings

__all__ = ["ConventionWarning", "warn_once"]

_TEXTS = {
    "causal-mask": "attention's mask does not count under is_causal; omit the mask, or add the "
    "causal one to it and pass is_causal=False",
    "float16": "linear layers compute in float16, whatever float dtype is asked for",
    "index-keeps-axis": "tensor[0, :] of a graph keeps the axis, with one element; write "
    "tensor[0:1, :] to say so, or reshape the result",
    "scale-root": "products over integers divide by the square root of their inputs; pass scales "
    "multiplied by it, or use npu_ops.QMatMul, which does not divide",
    "tensor-to": "tensors stay on the host under .to('npu'); modules move",
}
# The warning names the line that called these.
_OURS = ("npu_llm.compat.", "npu_compiler.", "torch.")
_told: set[str] = set()


class ConventionWarning(UserWarning):
    """A convention of that library counts, which is not torch's."""


def warn_once(convention: str) -> None:
    """Warns of a convention when it first counts in this process.

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
