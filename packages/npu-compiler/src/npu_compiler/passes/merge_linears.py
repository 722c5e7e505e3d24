"""Joins linear layers that read the same input into one, as the projections of attention do.

Weights must be constants of the program, so that joining them costs nothing at run time. The parts
of the joined result are copies, and the CPU plugin's products of some hundred rows gain less than
those cost (1 to 4 % slower on BERT and Llama): hence only where asked for, or measured faster.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.graph.nodes import add_call, is_call, is_static, sizes_of, value_of
from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["MergeLinears"]

aten = torch.ops.aten


@dataclass(frozen=True)
class MergeLinears(GraphPass):
    """Horizontal fusion: linear(x, a), linear(x, b) -> parts of linear(x, [a; b])."""

    name = "merge_linears"
    stage = "fuse"
    kinds = frozenset({"inference"})
    by_default = False

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        groups: dict[Any, list[fx.Node]] = defaultdict(list)
        for node in graph.nodes:
            if facts.is_kept(node) or not is_call(node, aten.linear.default):
                continue
            if _has_constant_weights(node, facts):
                weight = value_of(node.args[1])
                has_bias = len(node.args) > 2 and node.args[2] is not None
                groups[node.args[0], weight.dtype, has_bias].append(node)
        found = [nodes for nodes in groups.values() if len(nodes) > 1]
        for nodes in found:
            _merge(graph, nodes)
        return len(found)


def _has_constant_weights(node: fx.Node, facts: Facts) -> bool:
    weights = [part for part in node.args[1:3] if part is not None]
    return all(
        isinstance(part, fx.Node)
        and part.op == "placeholder"
        and part.name in facts.constants
        and is_static(part)
        for part in weights
    )


def _merge(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    first = nodes[0]
    x = first.args[0]
    weights = [node.args[1] for node in nodes]
    has_bias = len(first.args) > 2 and first.args[2] is not None
    # All arguments are inputs of the graph but x, which stands before the first of its readers.
    weight = add_call(graph, first, aten.cat.default, (weights, 0), origin=first)
    bias = None
    if has_bias:
        biases = [node.args[2] for node in nodes]
        bias = add_call(graph, first, aten.cat.default, (biases, 0), origin=first)
    whole = add_call(graph, first, aten.linear.default, (x, weight, bias), origin=first)
    start = 0
    for node in nodes:
        width = sizes_of(node.args[1])[0]  # type: ignore[arg-type]
        axis = value_of(whole).dim() - 1
        part = add_call(
            graph, first, aten.slice.Tensor, (whole, axis, start, start + width), origin=node
        )
        # Contiguous, as the layer's own result was: a view of it stays possible.
        copy = add_call(
            graph, first, aten.clone.default, (part,), origin=node,
            memory_format=torch.contiguous_format,
        )  # fmt: skip
        node.replace_all_uses_with(copy)
        start += width
    for node in nodes:
        graph.erase_node(node)
