"""Emitter: adds calls to a traced graph as if they had been traced."""

from __future__ import annotations

from typing import Any

from torch import fx

__all__ = ["Emitter"]

_ORIGIN = ("nn_module_stack", "stack_trace")


class Emitter:
    """Adds calls to a graph, with fake values and the origin of a given call."""

    def __init__(self, beside: fx.Node) -> None:
        self._graph = beside.graph
        self._origin = {key: beside.meta[key] for key in _ORIGIN if key in beside.meta}
        self._mode = beside.meta["val"].fake_mode

    def __call__(self, target: Any, *args: Any) -> fx.Node:
        """Returns a new call of `target` at the place where the graph inserts."""
        node = self._graph.call_function(target, args)
        node.meta.update(self._origin)
        with self._mode:
            node.meta["val"] = target(*fx.map_arg(args, lambda item: item.meta["val"]))
        return node
