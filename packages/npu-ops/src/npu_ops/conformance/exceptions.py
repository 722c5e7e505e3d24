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

_CPU_INDICES = "torch takes the indices on the CPU alone, for every device, and says so"

# (op, check): why it may differ.
EXPECTED: dict[tuple[str, str], str] = {
    ("tensor_split", "forward"): _CPU_INDICES,
    ("tensor_split", "backward"): _CPU_INDICES,
    ("tensor_split", "non-contiguous"): _CPU_INDICES,
}


def is_undefined(op: Any) -> bool:
    """Whether an op's values are whatever the memory held."""
    return op.name in _UNDEFINED
