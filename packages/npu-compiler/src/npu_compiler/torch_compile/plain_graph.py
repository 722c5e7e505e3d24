"""PlainGraph: calls a graph's program without what AOTAutograd does around graphs that need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npu_compiler.compilation.compiled_graph import CompiledGraph
from npu_compiler.programs.kernel_execution import run_shortcut

__all__ = ["PlainGraph"]


class PlainGraph:
    """A graph of which AOTAutograd changed nothing but the calls, as dynamo calls it.

    AOTAutograd's wrappers take some 5 us per call (torch 2.12). Their work is for inputs that are
    written to, views among the results, gradients, and calls under autocast: none of it is left
    where one program computes all results.
    """

    def __init__(self, graph: CompiledGraph, traced: Callable[..., Any]) -> None:
        """Takes a graph.

        Args:
            graph: as AOTAutograd calls it.
            traced: what AOTAutograd returned, for calls that are more than one program's.
        """
        self._graph = graph
        self._traced = traced

    def __call__(self, *inputs: Any) -> Any:
        """Runs the graph."""
        shortcut = self._graph.shortcut
        if shortcut is not None:
            results = run_shortcut(shortcut, inputs)
            if results is not None:
                return results
        if self._graph.is_one_program:
            return self._graph(list(inputs))
        return self._traced(*inputs)
