"""Makes one call per kind of gradient of a convolution, so that each runs where it is fastest.

The gradient of the input is what other gradients wait for: a program has it, and a backward graph
is not cut at each convolution. Which gradients a program takes is the converter's rule.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from npu_compiler.graph.nodes import add_call, is_call
from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["SeparateConvolutionGradients"]

_GRADIENTS = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class SeparateConvolutionGradients(GraphPass):
    """convolution_backward -> one call for the input, one for weight and bias."""

    name = "separate_convolution_gradients"
    stage = "normalize"
    kinds = frozenset({"backward"})

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        found = [
            node for node in graph.nodes if is_call(node, _GRADIENTS) and not facts.is_kept(node)
        ]
        count = 0
        for node in found:
            is_of_input, *others = cast("Sequence[bool]", node.args[-1])
            if is_of_input and any(others):
                _separate(graph, node, others)
                count += 1
        return count


def _separate(graph: fx.Graph, node: fx.Node, others: Sequence[bool]) -> None:
    arguments = node.args[:-1]
    first = add_call(graph, node, _GRADIENTS, (*arguments, [True, False, False]), origin=node)
    rest = add_call(graph, node, _GRADIENTS, (*arguments, [False, *others]), origin=node)
    for user in list(node.users):
        assert user.target is operator.getitem
        user.replace_input_with(node, first if user.args[1] == 0 else rest)
    graph.erase_node(node)
