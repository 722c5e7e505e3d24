"""Cases of the interface, expanded from the templates in data/*.toml.

A template has ops, dtypes, layouts, checks and argument lists; each valid combination is a case.
docs/guides/conformance.md describes the grammar.
"""

from __future__ import annotations

import functools
import itertools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from npu_ops.errors import OperatorInputError
from npu_ops.op_conformance.cases.case import CHECKS, LAYOUTS, Case, has_effect, parse_tensor
from npu_ops.op_conformance.interface import load_operators

__all__ = ["expand", "interface_cases"]

_DATA = Path(__file__).with_name("data")
_KEYS = {"ops", "dtypes", "layouts", "checks", "each", "grid", "range", "tolerance"}


@functools.cache
def interface_cases() -> dict[str, Case]:
    """Returns all cases of the interface by id, in file order."""
    shared = tomllib.loads((_DATA / "shared.toml").read_text(encoding="utf-8"))
    cases: dict[str, Case] = {}
    for file in sorted(_DATA.glob("*.toml")):
        if file.name == "shared.toml":
            continue
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        sets = shared["sets"] | table.get("sets", {})
        for template in table["cases"]:
            for case in expand(template, sets):
                cases.setdefault(case.id, case)
    return cases


def expand(template: Mapping[str, Any], sets: Mapping[str, Any]) -> Iterator[Case]:
    """Returns the cases of a template.

    Args:
        template: `ops`; `each`, a list of argument tables; optionally `grid`, lists of values by
            argument, to be combined; `dtypes`, `layouts`, `checks`, `range`, `tolerance`.
        sets: named lists, which a template may refer to by name.

    Raises:
        OperatorInputError: [case-template] for an unknown key, op, layout or check.
    """
    _check(template)
    ops, dtypes, layouts, each = (
        _listed(template.get(key, usual), sets)
        for key, usual in (
            ("ops", []),
            ("dtypes", ["float32"]),
            ("layouts", ["contiguous"]),
            ("each", [{}]),
        )
    )
    _known("op", ops, load_operators())
    _known("layout", layouts, LAYOUTS)
    checks = tuple(template.get("checks", ()))
    _known("check", checks, CHECKS)
    grid = {name: _listed(values, sets) for name, values in template.get("grid", {}).items()}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    for op, arguments, point, dtype in itertools.product(ops, each, points, dtypes):
        yield from _of_layouts(template, op, arguments | point, dtype, layouts, checks)


def _of_layouts(
    template: Mapping[str, Any],
    op: str,
    given: dict[str, Any],
    dtype: str,
    layouts: list[str],
    checks: tuple[str, ...],
) -> Iterator[Case]:
    operator = load_operators()[op]
    arguments = {
        name: _ranged(value, template.get("range", "")) if name in operator.tensors else value
        for name, value in given.items()
    }
    shapes = [
        parse_tensor(text).shape
        for name in operator.tensors & arguments.keys()
        for text in _lines(arguments[name])
    ]
    for layout in layouts:
        if layout != "contiguous" and not any(has_effect(layout, shape) for shape in shapes):
            continue
        kept = tuple(
            check
            for check in CHECKS
            if check == "forward" or (check in checks and _applies(operator, check, dtype, layout))
        )
        yield Case("interface", op, dtype, layout, arguments, kept, template.get("tolerance", ""))


def _applies(operator: Any, check: str, dtype: str, layout: str) -> bool:
    if check == "in-place":
        # An expanded tensor cannot be written.
        return bool(operator.inplace) and layout != "expanded"
    kind = getattr(torch, dtype)
    return bool(kind.is_floating_point or kind.is_complex)


def _ranged(value: Any, usual: str) -> Any:
    """Adds the template's range to tensors of the case's dtype without a range."""
    if not isinstance(value, str):
        return [_ranged(text, usual) for text in value]
    spec = parse_tensor(value)
    has_own = spec.low is not None or spec.dtype or spec.kind == "permutation"
    return f"{value} {usual}" if usual and not has_own else value


def _lines(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value


def _listed(value: Any, sets: Mapping[str, Any]) -> list[Any]:
    if isinstance(value, str):
        if value not in sets:
            raise _wrong("set", value, sets)
        return list(sets[value])
    return list(value)


def _check(template: Mapping[str, Any]) -> None:
    for key in template.keys() - _KEYS:
        raise _wrong("key", key, _KEYS)


def _known(what: str, names: Any, known: Any) -> None:
    for name in names:
        if name not in known:
            raise _wrong(what, name, known)


def _wrong(what: str, name: str, known: Any) -> OperatorInputError:
    shown = sorted(known)
    some = ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else "")
    return OperatorInputError(
        f"A case template must have a known {what} ({some}), got {name!r}. Correct the template, "
        f"or add the {what}.",
        code="case-template",
    )
