"""Makes one batched product of products of equal shapes that do not wait for each other.

Many small products, as experts or branches have them, cost a call of the device each.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.graph.nodes import add_call, is_call, is_static, sizes_of, value_of
from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["BatchMatmuls"]

aten = torch.ops.aten


@dataclass(frozen=True)
class BatchMatmuls(GraphPass):
    """mm(a, b), mm(c, d), ... -> parts of bmm([a, c], [b, d]).

    Attributes:
        min_count: fewer products stay as they are.
        max_elements: of one left factor; a large one is worth its own call, and copying it is not.
    """

    min_count: int = 3
    max_elements: int = 1 << 14

    name = "batch_matmuls"
    stage = "fuse"
    kinds = frozenset({"inference"})

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        groups: dict[Any, list[fx.Node]] = defaultdict(list)
        for node in graph.nodes:
            if self._fits(node, facts):
                left, right = node.args
                groups[sizes_of(left), sizes_of(right), value_of(left).dtype].append(node)
        count = 0
        for nodes in groups.values():
            for part in _independent(nodes):
                if len(part) >= self.min_count:
                    _batch(graph, part)
                    count += 1
        return count

    def _fits(self, node: fx.Node, facts: Facts) -> bool:
        if not is_call(node, aten.mm.default) or facts.is_kept(node):
            return False
        left, right = node.args
        if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
            return False
        is_small = is_static(left) and value_of(left).numel() <= self.max_elements
        return is_small and is_static(right) and _is_constant(right, facts)


def _is_constant(node: fx.Node, facts: Facts) -> bool:
    """Whether a factor is a weight, so that stacking it costs nothing at run time."""
    while is_call(node, aten.t.default) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.op == "placeholder" and node.name in facts.constants


def _independent(nodes: list[fx.Node]) -> list[list[fx.Node]]:
    """Groups of products none of which waits for another of its group."""
    groups: list[tuple[list[fx.Node], set[fx.Node]]] = []
    for node in nodes:
        before = _ancestors(node)
        for members, _ in groups:
            if not before & set(members):
                members.append(node)
                break
        else:
            groups.append(([node], before))
    return [members for members, _ in groups]


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(node.all_input_nodes)
    while stack:
        current = stack.pop()
        if current not in found:
            found.add(current)
            stack.extend(current.all_input_nodes)
    return found


def _batch(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    last = nodes[-1]
    stacked = [
        add_call(graph, last, aten.stack.default, ([n.args[side] for n in nodes],), origin=last)
        for side in (0, 1)
    ]
    whole = add_call(graph, last, aten.bmm.default, tuple(stacked), origin=last)
    end = last
    for index, node in enumerate(nodes):
        part = add_call(graph, last, aten.select.int, (whole, 0, index), origin=node)
        node.replace_all_uses_with(part)
        end = part
    for node in nodes:
        graph.erase_node(node)
    _sort_after(graph, end)


def _sort_after(graph: fx.Graph, end: fx.Node) -> None:
    """Moves calls that stand before a node and wait for something behind it to behind it."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    late = [
        node
        for node in graph.nodes
        if place[node] < place[end] and any(place[s] > place[node] for s in node.all_input_nodes)
    ]
    moved = set(late)
    # What waits for a moved call waits as well.
    for node in graph.nodes:
        if place[node] < place[end] and any(source in moved for source in node.all_input_nodes):
            moved.add(node)
    target = end
    for node in list(graph.nodes):
        if node in moved:
            target.append(node)
            target = node
