"""Conventions of that library that surprise: kept, and told of once per process."""

from __future__ import annotations

import warnings

__all__ = ["warn_once"]

_TEXTS = {
    "tensor-to": "tensors stay on the host under .to('npu'), as in that library; modules move",
    "float16": "linear layers compute in float16, whatever float dtype is asked for",
}
_told: set[str] = set()


def warn_once(convention: str) -> None:
    """Warns of a convention when it first counts in this process.

    Args:
        convention: a key of the table.
    """
    if convention in _told:
        return
    _told.add(convention)
    warnings.warn(
        f"intel_npu_acceleration_library: {_TEXTS[convention]}.", UserWarning, stacklevel=3
    )
