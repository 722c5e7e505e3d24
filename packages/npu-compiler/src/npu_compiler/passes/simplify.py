"""Passes that remove calls and keep values bit for bit: dead code, constants, casts, views."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from npu_compiler.graph.nodes import (
    add_call,
    is_call,
    is_static,
    returned_memory,
    same_value,
    value_of,
    written_memory,
)
from npu_compiler.passes.infra.pass_base import Facts, GraphPass

__all__ = [
    "DropEmptyParts",
    "FoldConstants",
    "MergeCommonSubexpressions",
    "RemoveDeadCode",
    "SimplifyCasts",
    "SimplifyViews",
]

# Calls with side effects (writes, random numbers, asserts) stay.


@dataclass(frozen=True)
class RemoveDeadCode(GraphPass):
    """Eliminates dead code."""

    name = "remove_dead_code"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        before = len(graph.nodes)
        graph.eliminate_dead_code()
        return before - len(graph.nodes)


# Programs cannot have empty tensors; without them the concatenation can be lowered.

_CONCATENATIONS = (torch.ops.aten.cat.default, torch.ops.aten.concat.default)


@dataclass(frozen=True)
class DropEmptyParts(GraphPass):
    """Removes empty parts of concatenations."""

    name = "drop_empty_parts"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        count = 0
        for node in graph.nodes:
            if node.op != "call_function" or node.target not in _CONCATENATIONS:
                continue
            parts = list(cast(Sequence[fx.Node], node.args[0]))
            kept = [part for part in parts if not _is_empty(part)]
            dtype = node.meta["val"].dtype
            keeps_dtype = any(part.meta["val"].dtype == dtype for part in kept)
            if kept and len(kept) < len(parts) and keeps_dtype:
                node.args = (kept, *node.args[1:])
                count += 1
        if count:
            graph.eliminate_dead_code()
        return count


def _is_empty(part: fx.Node) -> bool:
    shape: tuple[Any, ...] = tuple(part.meta["val"].shape)
    return any(isinstance(size, int) and size == 0 for size in shape)


# Weights are unknown here; the device's compiler folds calls that depend only on them.

_PREFIX = "_folded_"


@dataclass(frozen=True)
class FoldConstants(GraphPass):
    """Replaces calls without inputs by their values."""

    # Larger values stay calls; a range of a million is cheaper to compute than to store.
    max_bytes: int = 1 << 20

    name = "fold_constants"
    stage = "normalize"
    kinds = frozenset({"inference"})

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        owner = graph.owning_module
        if owner is None:
            return 0
        values: dict[fx.Node, torch.Tensor] = {}
        # A result is new memory in each call; a stored constant is not.
        returned = returned_memory(graph)
        for node in graph.nodes:
            if node.op != "call_function" or node in returned:
                continue
            if self._can_fold(node, values, facts):
                values[node] = _evaluate(node, values)
        # Values that calls outside of the fold read; all others are removed.
        kept = [node for node in values if any(user not in values for user in node.users)]
        for node in kept:
            _replace_by_value(graph, owner, node, values[node])
        for node in reversed(list(graph.nodes)):
            if node in values and not node.users:
                graph.erase_node(node)
        return len(values)

    def _can_fold(self, node: fx.Node, values: dict[fx.Node, torch.Tensor], facts: Facts) -> bool:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or facts.is_kept(node):
            return False
        if target.namespace != "aten" or target._schema.is_mutable or node.is_impure():
            return False
        if torch.Tag.nondeterministic_seeded in target.tags or not is_static(node):
            return False
        if any(source not in values for source in node.all_input_nodes):
            return False
        meta = node.meta["val"]
        has_result = meta.numel() > 0 and meta.numel() * meta.element_size() <= self.max_bytes
        return has_result and not _is_undefined(target)


def _is_undefined(target: torch._ops.OpOverload) -> bool:
    """Whether an op's result is uninitialized memory."""
    return "empty" in target._schema.name


def _evaluate(node: fx.Node, values: dict[fx.Node, torch.Tensor]) -> torch.Tensor:
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
    args, kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs))
    with unset_fake_temporarily(), torch.no_grad():
        result: Any = node.target(*args, **kwargs)  # type: ignore[operator]
        # A view would keep its whole base alive, and two values must not share memory.
        return result.contiguous().clone()  # type: ignore[no-any-return]


def _replace_by_value(
    graph: fx.Graph, owner: torch.nn.Module, node: fx.Node, value: torch.Tensor
) -> None:
    name = next(f"{_PREFIX}{i}" for i in range(1 << 30) if not hasattr(owner, f"{_PREFIX}{i}"))
    meta = node.meta["val"]
    if meta.device.type != "cpu":
        with unset_fake_temporarily():
            value = value.to(meta.device)
    owner.register_buffer(name, value)
    with graph.inserting_before(node):
        fresh = graph.get_attr(name)
    fresh.meta = dict(node.meta)
    node.replace_all_uses_with(fresh)


# Random numbers, writes, and calls that read memory written in the graph are kept.


@dataclass(frozen=True)
class MergeCommonSubexpressions(GraphPass):
    """Eliminates common subexpressions."""

    name = "merge_common_subexpressions"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        # Reads before and after a write look equal, but differ.
        written = written_memory(graph)
        # Two results of a graph are two tensors with separate memory.
        returned = returned_memory(graph)
        first: dict[Any, fx.Node] = {}
        count = 0
        for node in list(graph.nodes):
            key = _key(node)
            if key is None or node in returned or not written.isdisjoint(node.all_input_nodes):
                continue
            known = first.setdefault(key, node)
            if known is node:
                continue
            node.replace_all_uses_with(known)
            graph.erase_node(node)
            count += 1
        return count


def _key(node: fx.Node) -> Any:
    if node.op == "get_attr":
        return ("get_attr", node.target)
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    target = node.target
    if target._schema.is_mutable or node.is_impure():
        return None
    if torch.Tag.nondeterministic_seeded in target.tags or not target._schema.returns:
        return None
    if any(key.startswith("npu_") for key in node.meta):
        return None
    return (target, _frozen(node.args), _frozen(dict(node.kwargs)))


def _frozen(value: Any) -> Any:
    """Returns a hashable form of a value, in which 1, 1.0 and True differ."""
    if isinstance(value, (list, tuple)):
        return (list, *(_frozen(item) for item in value))
    if isinstance(value, dict):
        return (dict, *sorted((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, fx.Node):
        return value
    # repr distinguishes -0.0 from 0.0, and makes nan equal to itself.
    return (type(value), repr(value))


# Values stay equal bit for bit: a cast to a narrower dtype rounds, so it is kept.

_CAST = torch.ops.aten._to_copy.default
# dtype -> dtypes that represent each of its values.
_WIDER = {
    torch.bfloat16: {torch.float32, torch.float64},
    torch.float16: {torch.float32, torch.float64},
    torch.float32: {torch.float64},
    torch.int32: {torch.int64, torch.float64},
    torch.int16: {torch.int32, torch.int64, torch.float32, torch.float64},
    torch.int8: {torch.int16, torch.int32, torch.int64, torch.float32, torch.float64},
    torch.uint8: {torch.int16, torch.int32, torch.int64, torch.float32, torch.float64},
    torch.bool: {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
                 torch.bfloat16, torch.float16, torch.float32, torch.float64},
}  # fmt: skip


@dataclass(frozen=True)
class SimplifyCasts(GraphPass):
    """Removes redundant casts of dtype promotion."""

    name = "simplify_casts"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        def simplified(node: fx.Node, source: fx.Node) -> fx.Node | None:
            if not _is_plain_cast(node) or facts.is_kept(source):
                return None
            return _simplified_cast(graph, node, source)

        return _replace_calls(graph, facts, simplified)


def _replace_calls(
    graph: fx.Graph, facts: Facts, simplified: Callable[[fx.Node, fx.Node], fx.Node | None]
) -> int:
    """Replaces calls of a source; returns the number of replaced calls."""
    returned, written = returned_memory(graph), written_memory(graph)
    count = 0
    for node in list(graph.nodes):
        if node in returned or node.op != "call_function" or not node.args:
            continue
        source = node.args[0]
        if facts.is_kept(node) or not isinstance(source, fx.Node) or source in written:
            continue
        fresh = simplified(node, source)
        if fresh is not None:
            node.replace_all_uses_with(fresh)
            graph.erase_node(node)
            count += 1
    if count:
        graph.eliminate_dead_code()
    return count


def _simplified_cast(graph: fx.Graph, node: fx.Node, source: fx.Node) -> fx.Node | None:
    if same_value(value_of(node), value_of(source)):
        return source
    if not _is_plain_cast(source):
        return None
    origin = source.args[0]
    assert isinstance(origin, fx.Node)
    before, between, after = (value_of(part).dtype for part in (origin, source, node))
    if between not in _WIDER.get(before, ()):
        return None
    if before is after:
        return origin if same_value(value_of(origin), value_of(node)) else None
    fresh = add_call(graph, node, _CAST, (origin,), origin=node, dtype=after)
    if same_value(value_of(fresh), value_of(node)):
        return fresh
    graph.erase_node(fresh)
    return None


def _is_plain_cast(node: fx.Node) -> bool:
    """Whether a call changes only the dtype."""
    if not is_call(node, _CAST) or not isinstance(node.args[0], fx.Node):
        return False
    source, result = value_of(node.args[0]), value_of(node)
    return isinstance(source, torch.Tensor) and source.device == result.device


# Calls of results and written values are kept: there, a copy is separate memory.

aten = torch.ops.aten

_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_TURNS = (aten.t.default, aten.transpose.int, aten.permute.default)
# Calls that return their input if dtype, sizes and strides are equal.
_IDENTITIES = (
    *_RESHAPES,
    aten.alias.default,
    aten.clone.default,
    aten.detach.default,
    aten.expand.default,
    aten.lift_fresh_copy.default,
    aten.permute.default,
    aten.slice.Tensor,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
)


@dataclass(frozen=True)
class SimplifyViews(GraphPass):
    """Simplifies views and transposes."""

    name = "simplify_views"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        return _replace_calls(graph, facts, functools.partial(_simplified_view, graph))


def _simplified_view(graph: fx.Graph, node: fx.Node, source: fx.Node) -> fx.Node | None:
    """Returns the replacement of a call: its source, or one call for two."""
    if node.target in _IDENTITIES and same_value(value_of(node), value_of(source)):
        return source
    if node.target in _RESHAPES and is_call(source, *_RESHAPES):
        if same_value(value_of(node), value_of(source.args[0])):
            return cast(fx.Node, source.args[0])
        return _checked(graph, node, aten.reshape.default, (source.args[0], node.args[1]))
    if node.target in _TURNS and is_call(source, *_TURNS):
        return _one_turn(graph, node, source)
    return None


def _one_turn(graph: fx.Graph, node: fx.Node, source: fx.Node) -> fx.Node | None:
    inner, outer = _order(source), _order(node)
    origin = source.args[0]
    if inner is None or outer is None or not isinstance(origin, fx.Node):
        return None
    order = [inner[axis] for axis in outer]
    if order == sorted(order):
        return origin
    return _checked(graph, node, aten.permute.default, (origin, order))


def _order(node: fx.Node) -> Sequence[int] | None:
    """Returns the permutation of a call."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return None
    rank = value.dim()
    axes = list(range(rank))
    if node.target is aten.permute.default:
        given: Any = node.args[1]
        return [axis % rank for axis in given]
    if node.target is aten.t.default:
        return axes[::-1]
    if rank == 0:
        return axes
    first, second = (int(axis) % rank for axis in node.args[1:3])  # type: ignore[arg-type]
    axes[first], axes[second] = axes[second], axes[first]
    return axes


def _checked(
    graph: fx.Graph, node: fx.Node, target: Callable[..., Any], args: tuple[Any, ...]
) -> fx.Node | None:
    """Returns a new call to replace a node if its fake value equals the node's."""
    if any(isinstance(part, fx.Node) for part in args[1]):
        return None  # symbolic sizes
    try:
        fresh = add_call(graph, node, target, args, origin=node)
    except RuntimeError:
        return None  # another source leaves a size of -1 undetermined
    if same_value(value_of(fresh), value_of(node)):
        return fresh
    graph.erase_node(fresh)
    return None
