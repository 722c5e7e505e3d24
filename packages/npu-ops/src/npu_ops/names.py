"""Names of ops as people write them, and patterns over them.

torch's dispatcher says `aten::add.Tensor`, its Python side `aten.add.Tensor`; both are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

__all__ = ["dotted_name", "first_match"]


def dotted_name(name: str) -> str:
    """Returns `aten.add.Tensor` for `aten::add.Tensor`, and for itself."""
    return name.replace("::", ".")


def first_match(name: str, patterns: Iterable[str]) -> str | None:
    """Returns the first pattern that fits an op, or None.

    Args:
        name: of the op, in either spelling.
        patterns: exact names or globs. A pattern without a namespace means aten, one without an
            overload means all of them: `add` fits `aten::add.Tensor`.
    """
    full = dotted_name(name)
    without_overload = ".".join(full.split(".")[:2])
    for pattern in patterns:
        wanted = dotted_name(pattern)
        forms = (wanted, f"aten.{wanted}")
        if any(fnmatchcase(n, form) for n in (full, without_overload) for form in forms):
            return pattern
    return None
