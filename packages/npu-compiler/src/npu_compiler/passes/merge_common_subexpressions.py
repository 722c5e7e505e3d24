"""Computes once what is computed twice from the same values.

Random draws, writes and calls that read memory which is written in the graph stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.graph.nodes import returned_memory, written_memory
from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["MergeCommonSubexpressions"]


@dataclass(frozen=True)
class MergeCommonSubexpressions(GraphPass):
    """Common subexpression elimination."""

    name = "merge_common_subexpressions"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        # What is read before and after a write looks alike and is not.
        written = written_memory(graph)
        # Two results of a graph are two tensors, each with memory of its own.
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
    """A value as something hashable, in which 1, 1.0 and True differ."""
    if isinstance(value, (list, tuple)):
        return (list, *(_frozen(item) for item in value))
    if isinstance(value, dict):
        return (dict, *sorted((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, fx.Node):
        return value
    # repr tells -0.0 from 0.0, and nan from itself is equal there.
    return (type(value), repr(value))
