"""Makes a choice of the best k tokens right where there are fewer than k.

A trace has one length: where a model takes the best min(k, length) of its past, it was traced with
k. The number becomes the smaller of both again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

__all__ = ["allow_short_contexts"]

_aten = torch.ops.aten


def allow_short_contexts(graph_module: fx.GraphModule) -> None:
    """Lets each choice along a dimension that varies take no more than there is, in place.

    Args:
        graph_module: a step, traced with a past that is longer than any such choice.
    """
    graph = graph_module.graph
    for node in graph.find_nodes(op="call_function", target=_aten.topk.default):
        source, count, *rest = node.args
        dim = rest[0] if rest else -1
        length = source.meta["val"].shape[dim]
        if not isinstance(count, int) or isinstance(length, int):
            continue
        with graph.inserting_before(node):
            all_of_them = _sized(graph.call_function(_aten.sym_size.int, (source, dim)), length)
            least = graph.call_function(torch.sym_min, (count, all_of_them))
            _sized(least, torch.sym_min(count, length))  # type: ignore[no-untyped-call]
        node.args = (source, least, *rest)
    graph_module.recompile()


def _sized(node: fx.Node, value: Any) -> fx.Node:
    node.meta["val"] = value
    return node
