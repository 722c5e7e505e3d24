"""Uses an element of a tensor as a tensor without axes, where torch reads it as a number.

A number that the host reads ends a program, and another starts behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.graph.nodes import add_call, is_call
from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["UseElementsAsTensors"]

aten = torch.ops.aten

# Calls that take a tensor without axes for a number, with a result of the same dtype.
_TAKERS = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})


@dataclass(frozen=True)
class UseElementsAsTensors(GraphPass):
    """mul(x, item(y)) -> mul(x, view(y, [])), where nothing else reads the number."""

    name = "use_elements_as_tensors"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        count = 0
        for node in list(graph.nodes):
            if not is_call(node, aten._local_scalar_dense.default) or facts.is_kept(node):
                continue
            if node.users and all(_takes_tensor(user, node) for user in node.users):
                element = add_call(graph, node, aten.view.default, (node.args[0], []), origin=node)
                node.replace_all_uses_with(element)
                graph.erase_node(node)
                count += 1
        return count


def _takes_tensor(user: fx.Node, number: fx.Node) -> bool:
    """Whether the number is one operand of floats with axes, and as wide as these."""
    if user.target not in _TAKERS or number in user.kwargs.values():
        return False
    others: list[Any] = [operand for operand in user.args if operand is not number]
    if len(others) != 1 or not isinstance(others[0], fx.Node):
        return False
    other, source = others[0].meta["val"], number.args[0].meta["val"]  # type: ignore[union-attr]
    if not isinstance(other, torch.Tensor) or other.dim() == 0:
        return False
    return bool(source.dtype.is_floating_point and other.dtype.is_floating_point)
