"""Removes calls whose results are unused.

Calls with an effect (writes, random draws, asserts) stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["RemoveDeadCode"]


@dataclass(frozen=True)
class RemoveDeadCode(GraphPass):
    """Dead code elimination."""

    name = "remove_dead_code"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        before = len(graph.nodes)
        graph.eliminate_dead_code()
        return before - len(graph.nodes)
