"""Removes views, transpositions and copies that change nothing, and joins those that follow.

What a graph returns, or writes to, keeps its calls: there a copy is memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from npu_compiler.graph.nodes import (
    add_call,
    is_call,
    returned_memory,
    same_value,
    value_of,
    written_memory,
)
from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["SimplifyViews"]

aten = torch.ops.aten

_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_TURNS = (aten.t.default, aten.transpose.int, aten.permute.default)
# Calls that give their input again when dtype, sizes and strides are the same.
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
    """View and transpose simplification."""

    name = "simplify_views"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        pinned, written = returned_memory(graph), written_memory(graph)
        count = 0
        for node in list(graph.nodes):
            if node in pinned or node.op != "call_function" or not node.args:
                continue
            source = node.args[0]
            if facts.is_kept(node) or not isinstance(source, fx.Node):
                continue
            if source in written:
                continue
            fresh = _simplified(graph, node, source)
            if fresh is not None:
                node.replace_all_uses_with(fresh)
                graph.erase_node(node)
                count += 1
        if count:
            graph.eliminate_dead_code()
        return count


def _simplified(graph: fx.Graph, node: fx.Node, source: fx.Node) -> fx.Node | None:
    """What can stand for a call: its source, or one call for two."""
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
    """The axes that a call puts first, second, ..."""
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
    """A new call in place of a node, if its fake value is the node's."""
    if any(isinstance(part, fx.Node) for part in args[1]):
        return None  # symbolic sizes
    try:
        fresh = add_call(graph, node, target, args, origin=node)
    except RuntimeError:
        return None  # sizes with -1 that another source does not decide
    if same_value(value_of(fresh), value_of(node)):
        return fresh
    graph.erase_node(fresh)
    return None
