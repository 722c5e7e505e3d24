"""Op names as users write them, and patterns over them.

torch's dispatcher writes `aten::add.Tensor`, its Python side `aten.add.Tensor`; both are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from npu_ops.errors import OperatorInputError

__all__ = ["check_patterns", "dotted_name", "first_match"]


def dotted_name(name: str) -> str:
    """Converts `aten::add.Tensor` to `aten.add.Tensor`, which it returns unchanged."""
    return name.replace("::", ".")


def first_match(name: str, patterns: Iterable[str]) -> str | None:
    """Returns the first pattern that matches an op, or None.

    Args:
        name: name of the op, in either spelling.
        patterns: exact names or globs. The namespace defaults to aten, the overload to all: `add`
            matches `aten::add.Tensor`. The dispatcher's `aten::mm` is `aten.mm.default` in Python.
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
    """Checks that each pattern matches a registered operator.

    Args:
        option: name of the option, for messages.
        patterns: patterns as in first_match.

    Raises:
        OperatorInputError: [unknown-op] with the nearest name; [tool-option] for a pattern that is
            not a string.
    """
    import torch  # late: commands read names before torch is imported

    known = [dotted_name(name) for name in torch._C._dispatch_get_all_op_names()]
    for pattern in patterns:
        if not isinstance(pattern, str):  # items of an iterator, which @public_call cannot check
            raise OperatorInputError(
                f"{option} must be names or patterns of operators, got {pattern!r}. Pass strings.",
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
            f"`{option}` must name operators, got {pattern!r}, which matches none. {hint}Import "
            "the module that defines a custom operator first.",
            code="unknown-op",
        )
