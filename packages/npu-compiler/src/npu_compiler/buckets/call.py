"""One call while it is written with padded sizes: its arguments by name, and the table of rules.

The rules are in npu_compiler.buckets.rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from npu_compiler.buckets.factors import Dim, Dims, is_padded
from npu_compiler.buckets.writer import CannotPad, PaddedSize, Writer

__all__ = ["Call", "Rule", "Written", "find_rule", "rule"]


@dataclass(frozen=True)
class Written:
    """A result that a rule wrote by other calls than the one it was given."""

    node: fx.Node
    dims: Dims


class Call:
    """A call of the graph that is served, with arguments of the graph that is written.

    Attributes:
        writer: what writes.
        target: the op.
        expected: the result's sizes, each as one factor; a tuple of them for several results.
        checks_indices: whether torch could raise for an index of this call.
    """

    def __init__(
        self,
        writer: Writer,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        expected: Any,
        *,
        checks_indices: bool = False,
    ) -> None:
        """Takes the arguments as they stand in the graph."""
        self.checks_indices = checks_indices
        self.writer = writer
        self.target = target
        self.expected = expected
        self._args = list(args)
        self._kwargs = dict(kwargs)
        self._names = [argument.name for argument in target._schema.arguments]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an argument by its schema's name."""
        place = self._names.index(name)
        if place < len(self._args):
            return self._args[place]
        if name in self._kwargs:
            return self._kwargs[name]
        argument = self.target._schema.arguments[place]
        return argument.default_value if argument.has_default_value() else default

    def set(self, name: str, value: Any) -> None:
        """Replaces an argument."""
        place = self._names.index(name)
        if place < len(self._args):
            self._args[place] = value
        else:
            self._kwargs[name] = value

    def items(self) -> Iterator[tuple[str, Any]]:
        """Arguments that are given, by name."""
        yield from zip(self._names, self._args, strict=False)
        yield from self._kwargs.items()

    def dims(self, name: str) -> Dims:
        """Returns the dimensions of a tensor argument."""
        return self.writer.dims[self.get(name)]

    def write(self) -> fx.Node:
        """Writes the call with its present arguments."""
        return self.writer.call(self.target, *self._args, **self._kwargs)

    def refuse(self, reason: str, *dims: Dim) -> CannotPad:
        """Returns the refusal to pad what varies in some dimensions."""
        return self.writer.refuse(reason, *dims)

    def require_whole(self, reason: str, *dims: Dim) -> None:
        """Refuses where a dimension varies.

        Raises:
            CannotPad: one does.
        """
        if any(map(is_padded, dims)):
            raise self.refuse(reason, *dims)

    def require_prefix(self, reason: str, *dims: Dim) -> None:
        """Refuses where true values do not stand at the first positions, each at its own.

        Of two joined dimensions that vary, the true position 3 need not be the padded position 3.

        Raises:
            CannotPad: in a dimension they do not.
        """
        if any(is_padded(dim) and len(dim) > 1 for dim in dims):
            raise self.refuse(reason, *dims)


@dataclass(frozen=True)
class Rule:
    """Where the true values of an op's result are.

    Attributes:
        function: returns the result's dims, and may replace arguments before; or a Written.
        sizes: arguments that only say how large the result is.
    """

    function: Callable[[Call], Any]
    sizes: frozenset[str]

    def apply(self, call: Call) -> tuple[fx.Node, Any]:
        """Writes a call and returns it with its dims.

        Raises:
            CannotPad: true values cannot be kept apart from padding.
        """
        for name, value in call.items():
            marked = any(isinstance(x, PaddedSize) for x in pytree.tree_leaves(value))
            if marked and name not in self.sizes:
                raise CannotPad(f"{name} computes with a size that varies", ())
        found = self.function(call)
        if isinstance(found, Written):
            return found.node, found.dims
        made = call.write()
        return made, found(made) if inspect.isfunction(found) else found


_RULES: dict[Any, Rule] = {}


def rule(
    *targets: Any, sizes: tuple[str, ...] = ()
) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Registers a rule for ops; see Rule."""

    def register(function: Callable[[Call], Any]) -> Callable[[Call], Any]:
        made = Rule(function, frozenset(sizes))
        for target in targets:
            assert target not in _RULES
            _RULES[target] = made
        return function

    return register


def find_rule(target: Any, pointwise: Rule) -> Rule | None:
    """Returns the rule of an op; ops that torch tags as pointwise share one."""
    if target in _RULES:
        return _RULES[target]
    if isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags:
        return pointwise
    return None
