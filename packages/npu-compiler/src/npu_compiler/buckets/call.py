"""Call and Writer: the interface of bucketing rules to a call, and the graph that they write."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from npu_compiler.buckets.sizes import Dim, Dims, Expr, is_padded, whole

__all__ = [
    "Call",
    "CannotPad",
    "PaddedSize",
    "Range",
    "Rule",
    "Writer",
    "Written",
    "find_rule",
    "rule",
]

# The rules of each op are in npu_compiler.buckets.rules.

aten = torch.ops.aten

# Least and greatest value of an integer tensor.
Range = tuple[int, int]


class CannotPad(Exception):
    """Some sizes cannot be padded, because padding would reach the results."""

    def __init__(self, reason: str, symbols: Iterable[sympy.Symbol]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.symbols = frozenset(symbols)


class PaddedSize(int):
    """The padded value of a size, for graphs that compute with sizes."""

    true: Expr

    @classmethod
    def of(cls, size: int, true: Expr) -> PaddedSize:
        """Builds one from the padded and the true size."""
        made = cls(size)
        made.true = true
        return made


class Writer:
    """Writes the static graph.

    Attributes:
        graph: the graph under construction.
        dims: positions of true values per node (per result, for calls with several).
        values: integer tensors -> bounds of all their elements.
        pads: integer tensors -> bounds of the elements in padding.
        counts: true size -> the input that holds it.
    """

    def __init__(self, device: torch.device, mode: FakeTensorMode) -> None:
        """Starts an empty graph; masks are created on the device, fake values in the mode."""
        self.graph = fx.Graph()
        self.dims: dict[fx.Node, Dims] = {}
        self.values: dict[fx.Node, Range] = {}
        self.pads: dict[fx.Node, Range] = {}
        self.counts: dict[Expr, fx.Node] = {}
        self._device = device
        self._mode = mode
        self._masks: dict[Any, fx.Node] = {}
        self._meta: Mapping[str, Any] = {}

    def stand_for(self, node: fx.Node) -> None:
        """Writes the following calls in place of this node of the original graph."""
        self._meta = {key: value for key, value in node.meta.items() if key != "tensor_meta"}

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Writes a call with its fake value; the caller records its dims."""
        args, kwargs = pytree.tree_map_only(PaddedSize, int, (args, kwargs))
        node = self.graph.call_function(target, args, kwargs)
        node.meta = dict(self._meta)
        fake_args, fake_kwargs = fx.map_arg((args, kwargs), lambda source: source.meta["val"])
        with self._mode:
            node.meta["val"] = target(*fake_args, **fake_kwargs)
        return node

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Returns the padded sizes of a tensor."""
        return tuple(node.meta["val"].shape)

    def axis(self, node: fx.Node, dim: int) -> int:
        """Returns a dimension counted from the front."""
        return dim % max(len(self.dims[node]), 1)

    def refuse(self, reason: str, *dims: Dim) -> CannotPad:
        """Returns a CannotPad for the dynamic sizes in some dimensions."""
        factors = [factor for dim in dims for factor in dim if factor.is_padded]
        return CannotPad(
            reason,
            {
                symbol
                for factor in factors
                if not isinstance(factor.true, int)
                for symbol in factor.true.free_symbols
            },
        )

    def count(self, true: Expr) -> fx.Node:
        """Returns the tensor (shape (1,), int64) that holds a true size, an input of the graph."""
        if true not in self.counts:
            placed = list(self.graph.find_nodes(op="placeholder"))
            with self.graph.inserting_after(placed[-1]):
                node = self.graph.placeholder(f"true_size_{len(self.counts)}")
            with self._mode:
                node.meta["val"] = torch.empty(1, dtype=torch.int64, device=self._device)
            self.counts[true] = node
            self.dims[node] = (whole(1),)
        return self.counts[true]

    def without_true_value(self, dim: Dim) -> fx.Node:
        """Returns a bool mask of a dimension that is True in padding."""
        if dim not in self._masks:
            sizes = [factor.size for factor in dim]
            found: fx.Node | None = None
            for place, factor in enumerate(dim):
                if not factor.is_padded:
                    continue
                positions = self.call(
                    aten.arange.default, factor.size, dtype=torch.int64, device=self._device
                )
                behind = self.call(aten.ge.Tensor, positions, self.count(factor.true))
                if len(dim) > 1:
                    own = [1] * len(dim)
                    own[place] = factor.size
                    behind = self.call(aten.view.default, behind, own)
                    behind = self.call(aten.expand.default, behind, sizes)
                found = (
                    behind if found is None else self.call(aten.bitwise_or.Tensor, found, behind)
                )
            assert found is not None
            if len(dim) > 1:
                found = self.call(aten.reshape.default, found, [math.prod(sizes)])
            self._masks[dim] = found
        return self._masks[dim]

    def masked(self, node: fx.Node, axes: Sequence[int], value: Any) -> fx.Node:
        """Fills a tensor's padding along some of its dimensions with a value."""
        for axis in axes:
            dim = self.dims[node][axis]
            if not is_padded(dim):
                continue
            key = (node, axis, value)
            if key not in self._masks:
                shape = [1] * len(self.dims[node])
                shape[axis] = math.prod(factor.size for factor in dim)
                mask = self.call(aten.view.default, self.without_true_value(dim), shape)
                filled = self.call(aten.masked_fill.Scalar, node, mask, value)
                self.dims[filled] = self.dims[node]
                self._masks[key] = filled
            node = self._masks[key]
        return node

    def all_masked(self, node: fx.Node, value: Any) -> fx.Node:
        """Fills a tensor's padding with a value."""
        return self.masked(node, range(len(self.dims[node])), value)


# The rules are in npu_compiler.buckets.rules.


@dataclass(frozen=True)
class Written:
    """A result that a rule computed by other calls than the original."""

    node: fx.Node
    dims: Dims


class Call:
    """A call of the original graph, with arguments of the written graph.

    Attributes:
        writer: writes calls.
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
        """Takes the arguments as in the original graph."""
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
        """Returns the given arguments by name."""
        yield from zip(self._names, self._args, strict=False)
        yield from self._kwargs.items()

    def dims(self, name: str) -> Dims:
        """Returns the dimensions of a tensor argument."""
        return self.writer.dims[self.get(name)]

    def write(self) -> fx.Node:
        """Writes the call with its present arguments."""
        return self.writer.call(self.target, *self._args, **self._kwargs)

    def refuse(self, reason: str, *dims: Dim) -> CannotPad:
        """Returns a CannotPad for the dynamic sizes in some dimensions."""
        return self.writer.refuse(reason, *dims)

    def require_whole(self, reason: str, *dims: Dim) -> None:
        """Raises CannotPad if a dimension is dynamic."""
        if any(map(is_padded, dims)):
            raise self.refuse(reason, *dims)

    def require_prefix(self, reason: str, *dims: Dim) -> None:
        """Raises CannotPad unless the true values occupy the first positions, in place.

        In two joined dynamic dimensions, true position 3 may differ from padded position 3.
        """
        if any(is_padded(dim) and len(dim) > 1 for dim in dims):
            raise self.refuse(reason, *dims)


@dataclass(frozen=True)
class Rule:
    """Rule of an op: positions of true values in its result."""

    # Returns the result's dims, or a Written; may replace arguments first.
    function: Callable[[Call], Any]
    sizes: frozenset[str]  # arguments that only set the result's size

    def apply(self, call: Call) -> tuple[fx.Node, Any]:
        """Writes a call and returns it with its dims; CannotPad if padding would reach values."""
        for name, value in call.items():
            marked = any(isinstance(x, PaddedSize) for x in pytree.tree_leaves(value))
            if marked and name not in self.sizes:
                raise CannotPad(f"{name} computes with a dynamic size", ())
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
