"""Ops, and cells, of which a comparison with the CPU says nothing, each with its reason."""

from __future__ import annotations

from typing import Any

__all__ = ["EXPECTED", "is_undefined"]

# Results that are not a function of the arguments: their place is compared, not their values.
_UNDEFINED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    }
)

# (op, check): why it may differ. A cell that is listed and passes is reported, so that the list
# only gets shorter.
EXPECTED: dict[tuple[str, str], str] = {}


def is_undefined(op: Any) -> bool:
    """Whether an op's values are whatever the memory held."""
    return op.name in _UNDEFINED
