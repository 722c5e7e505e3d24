"""Rules of dtype and layout for a device, read from TOML and applied to a case."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map, tree_map_only

from npu_ops.errors import OperatorInputError
from npu_ops.names import first_match
from npu_ops.op_conformance.cases.case import Case, dtype_named
from npu_ops.op_conformance.cases.judge import Evaluation
from npu_runtime.public_calls import public_call

__all__ = ["LayoutRule", "Rules", "TypeRule", "load_rules"]

_SHIPPED = Path(__file__).with_name("data")
_FORMATS = {"channels_last": 4, "channels_last_3d": 5}


@dataclass(frozen=True)
class TypeRule:
    """A rule that replaces a dtype.

    Attributes:
        source: dtype of the case.
        target: dtype on the device.
        ops: patterns of the ops that it applies to.
        excluded: patterns of excluded ops.
        reason: reason for the rule, or for excluding ops.
    """

    source: torch.dtype
    target: torch.dtype
    ops: tuple[str, ...] = ("*",)
    excluded: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class LayoutRule:
    """A memory format for contiguous tensors of 4 or 5 dimensions.

    Attributes:
        target: `channels_last` (4) or `channels_last_3d` (5).
        ops: patterns of the ops that it applies to.
        excluded: patterns of excluded ops.
        reason: reason for the rule.
    """

    target: str
    ops: tuple[str, ...] = ("*",)
    excluded: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Rules:
    """The rules of a device."""

    types: tuple[TypeRule, ...] = ()
    layouts: tuple[LayoutRule, ...] = ()

    @public_call
    def dtype_for(self, op: str, dtype: torch.dtype) -> torch.dtype:
        """Returns the device's dtype for a dtype of a case."""
        for rule in self.types:
            if rule.source is dtype and _is_for(rule, op):
                return rule.target
        return dtype

    @public_call
    def adapt(self, case: Case, arguments: dict[str, Any]) -> dict[str, Any]:
        """Converts the arguments for the device, still on the CPU."""

        def change(leaf: Any) -> Any:
            if isinstance(leaf, torch.dtype):
                return self.dtype_for(case.op, leaf)
            if not isinstance(leaf, torch.Tensor):
                return leaf
            changed = leaf.detach()
            if changed.dtype is not self.dtype_for(case.op, leaf.dtype):
                changed = changed.to(self.dtype_for(case.op, leaf.dtype))
            changed = self._lay_out(case.op, changed)
            return leaf if changed is leaf else changed.requires_grad_(leaf.requires_grad)

        adapted = tree_map(change, arguments)
        assert isinstance(adapted, dict)
        return adapted

    @public_call
    def meet(
        self, case: Case, got: Evaluation, expected: Evaluation
    ) -> tuple[Evaluation, Evaluation]:
        """Converts both sides to the device's dtypes, so that its precision is the measure."""

        def change(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self.dtype_for(case.op, tensor.dtype))

        def met(one: Evaluation) -> Evaluation:
            return Evaluation(
                tree_map_only(torch.Tensor, change, one.results),
                tree_map_only(torch.Tensor, change, one.arguments),
                one.error,
                one.problem,
            )

        return met(got), met(expected)

    def _lay_out(self, op: str, tensor: torch.Tensor) -> torch.Tensor:
        for rule in self.layouts:
            if (
                tensor.dim() == _FORMATS[rule.target]
                and tensor.is_contiguous()
                and _is_for(rule, op)
            ):
                return tensor.contiguous(memory_format=getattr(torch, rule.target))
        return tensor


@functools.cache
def load_rules(name: str) -> Rules:
    """Reads a rules file.

    Args:
        name: path of a file, or name of a rules file of this package, such as `no_int64`.

    Raises:
        OperatorInputError: [conformance-rules] for an invalid file.
    """
    shipped = _SHIPPED / f"{name}.toml"
    try:
        file = shipped if shipped.exists() else Path(name)
        return _rules(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, AttributeError, AssertionError) as error:
        known = ", ".join(sorted(one.stem for one in _SHIPPED.glob("*.toml")))
        raise OperatorInputError(
            "`--rules` must be a TOML file with [[dtype]] (from, to) and [[layout]] (to), or one "
            f"of {known}, got {name!r}: {type(error).__name__}: {error}. Correct the file; "
            "docs/guides/conformance.md shows one.",
            code="conformance-rules",
        ) from error


def _rules(table: dict[str, Any]) -> Rules:
    astray = sorted(table.keys() - {"dtype", "layout"})
    if astray:
        raise ValueError(f"unknown tables {astray}")
    types = (
        TypeRule(dtype_named(rule["from"]), dtype_named(rule["to"]), *_scope(rule))
        for rule in table.get("dtype", ())
    )
    return Rules(tuple(types), tuple(_layout(rule) for rule in table.get("layout", ())))


def _layout(rule: dict[str, Any]) -> LayoutRule:
    if rule["to"] not in _FORMATS:
        raise ValueError(f"no layout {rule['to']!r} of {', '.join(_FORMATS)}")
    return LayoutRule(rule["to"], *_scope(rule))


def _scope(rule: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    return tuple(rule.get("ops", ("*",))), tuple(rule.get("except", ())), rule.get("reason", "")


def _is_for(rule: TypeRule | LayoutRule, op: str) -> bool:
    return _matches(op, rule.ops) and not _matches(op, rule.excluded)


def _matches(op: str, patterns: Iterable[str]) -> bool:
    return first_match(op, patterns) is not None
