"""Outputs that are views, taken of true values behind the program.

AOTAutograd takes strides and offset of such an output, and lays them over the memory of what it is
a view of. Those of a padded result are others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

from npu_compiler.buckets.sizes import evaluate, expression
from npu_compiler.graph.calls import view_chain

__all__ = ["OutputViews"]


class OutputViews:
    """The views among a graph's outputs.

    Attributes:
        module: the graph, which returns in the place of each view what it is a view of.
    """

    def __init__(self, graph_module: fx.GraphModule, known: Set[sympy.Symbol]) -> None:
        """Looks through the outputs of a graph, which stays as it is.

        Args:
            graph_module: functional, with fake values in `meta["val"]`.
            known: the symbols of which each call tells the sizes.
        """
        output = next(node for node in graph_module.graph.nodes if node.op == "output")
        leaves, spec = pytree.tree_flatten(output.args[0])
        chains = {
            index: view_chain(leaf)
            for index, leaf in enumerate(leaves)
            if isinstance(leaf, fx.Node)
        }
        roots = Counter(chain[-1] for chain in chains.values())
        self._calls: dict[int, list[fx.Node]] = {}
        for index, (*views, root) in chains.items():
            # Of a result that is returned once, nothing else is to share its memory.
            is_shared = root.op == "placeholder" or roots[root] > 1
            if views and is_shared and all(_is_known(view, known) for view in views):
                self._calls[index] = views[::-1]
                leaves[index] = root
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        graph.graph_copy(graph_module.graph, copies)
        returned = [copies[leaf] if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        graph.output(pytree.tree_unflatten(returned, spec))
        graph.eliminate_dead_code()
        self.module = fx.GraphModule(graph_module, graph)

    def take(self, index: int, result: Any, true: Mapping[sympy.Symbol, int]) -> Any:
        """Returns an output of the graph.

        Args:
            index: of the output.
            result: what `module` returned in its place.
            true: the sizes of the call.
        """
        for view in self._calls.get(index, ()):
            values: dict[Any, Any] = {
                node: evaluate(expression(node.meta["val"]), true)
                for node in view.all_input_nodes
                if node is not view.args[0]
            }
            values[view.args[0]] = result
            args, kwargs = fx.map_arg((view.args, view.kwargs), values.__getitem__)
            with torch.no_grad():
                result = view.target(*args, **kwargs)  # type: ignore[operator]
        return result


def _is_known(view: fx.Node, known: Set[sympy.Symbol]) -> bool:
    """Whether a view takes, beside what it is of, only sizes that a call tells."""
    sizes = [node.meta.get("val") for node in view.all_input_nodes if node is not view.args[0]]
    return all(
        isinstance(size, (int, torch.SymInt))
        and (isinstance(size, int) or set(size.node.expr.free_symbols) <= known)
        for size in sizes
    )
