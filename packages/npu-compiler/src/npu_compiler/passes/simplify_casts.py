"""Removes casts that change nothing, and the first of two where the second decides.

Values stay the same to the bit: a cast to a narrower dtype rounds and is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

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

__all__ = ["SimplifyCasts"]

_CAST = torch.ops.aten._to_copy.default
# From -> dtypes that hold each of its values.
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
    """Dtype promotion clean-up."""

    name = "simplify_casts"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        returned, written = returned_memory(graph), written_memory(graph)
        count = 0
        for node in list(graph.nodes):
            if not _is_plain_cast(node) or node in returned or node.args[0] in written:
                continue
            if any(map(facts.is_kept, (node, *node.all_input_nodes))):
                continue
            fresh = _simplified(graph, node)
            if fresh is not None:
                node.replace_all_uses_with(fresh)
                graph.erase_node(node)
                count += 1
        if count:
            graph.eliminate_dead_code()
        return count


def _simplified(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
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
    """Whether a call changes the dtype and nothing else."""
    if not is_call(node, _CAST) or not isinstance(node.args[0], fx.Node):
        return False
    source, result = value_of(node.args[0]), value_of(node)
    return isinstance(source, torch.Tensor) and source.device == result.device
