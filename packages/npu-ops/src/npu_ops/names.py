"""Names of ops as people write them, and patterns over them.

torch's dispatcher says `aten::add.Tensor`, its Python side `aten.add.Tensor`; both are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from npu_ops.errors import OperatorInputError

__all__ = ["check_patterns", "dotted_name", "first_match"]


def dotted_name(name: str) -> str:
    """Returns `aten.add.Tensor` for `aten::add.Tensor`, and for itself."""
    return name.replace("::", ".")


def first_match(name: str, patterns: Iterable[str]) -> str | None:
    """Returns the first pattern that fits an op, or None.

    Args:
        name: of the op, in either spelling.
        patterns: exact names or globs. A pattern without a namespace means aten, one without an
            overload means all of them: `add` fits `aten::add.Tensor`. The dispatcher's `aten::mm`
            is `aten.mm.default` in Python.
    """
    full = dotted_name(name)
    without_overload = ".".join(full.split(".")[:2])
    names = {full, without_overload} | ({f"{full}.default"} if full == without_overload else set())
    for pattern in patterns:
        wanted = dotted_name(pattern)
        forms = (wanted, f"aten.{wanted}")
        if any(fnmatchcase(n, form) for n in names for form in forms):
            return pattern
    return None


def check_patterns(option: str, patterns: Iterable[str]) -> None:
    """Checks that each pattern fits an operator that is registered.

    Args:
        option: what the patterns were given as.
        patterns: as first_match takes them.

    Raises:
        OperatorInputError: [unknown-op] with the nearest name; [tool-option] for one that is not
            text.
    """
    import torch  # commands read names before they load it

    known = [dotted_name(name) for name in torch._C._dispatch_get_all_op_names()]
    for pattern in patterns:
        if not isinstance(pattern, str):  # of an iterator, whose elements no check of the call saw
            raise OperatorInputError(
                f"{option} must be names or patterns of operators, got {pattern!r}. Pass text.",
                code="tool-option",
            )
        if any(first_match(name, [pattern]) for name in known):
            continue
        names = {".".join(name.split(".")[:2]) for name in known}
        wanted = dotted_name(pattern)
        full = wanted if "." in wanted else f"aten.{wanted}"
        close = get_close_matches(full, sorted(names), n=1, cutoff=0.6)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise OperatorInputError(
            f"`{option}` must name operators, got {pattern!r}, which fits none. {hint}Import the "
            "module that defines a custom operator first.",
            code="unknown-op",
        )
