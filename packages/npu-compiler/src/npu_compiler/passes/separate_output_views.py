"""Gives outputs that share memory, with an input or with each other, view calls of their own.

A program writes each result to new memory. Where a graph returns views of one tensor the views must
be taken outside of programs; the copies made here have the output as their only user, so that
programs keep their own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import fx
from torch.utils import _pytree as pytree

from npu_compiler.graph.calls import view_chain
from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["SeparateOutputViews"]


@dataclass(frozen=True)
class SeparateOutputViews(GraphPass):
    """Views that the caller sees are taken by the host."""

    name = "separate_output_views"
    stage = "layout"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        output = next(node for node in graph.nodes if node.op == "output")
        results = [node for node in pytree.tree_leaves(output.args) if isinstance(node, fx.Node)]
        chains = {node: view_chain(node) for node in dict.fromkeys(results)}
        roots = Counter(chain[-1] for chain in chains.values())
        replaced: dict[fx.Node, fx.Node] = {}
        for node, chain in chains.items():
            root = chain[-1]
            if len(chain) == 1 or (root.op != "placeholder" and roots[root] == 1):
                continue
            if all(view.meta.get("npu_is_output_view") for view in chain[:-1]):
                continue
            copy = root
            with graph.inserting_before(output):
                for view in reversed(chain[:-1]):
                    before, source = view.args[0], copy
                    fresh = graph.node_copy(view)
                    fresh.replace_input_with(before, source)  # type: ignore[arg-type]
                    fresh.meta["npu_is_output_view"] = True
                    copy = fresh
            replaced[node] = copy
        if replaced:
            output.args = pytree.tree_map_only(
                fx.Node, lambda node: replaced.get(node, node), output.args
            )
            graph.eliminate_dead_code()
        return len(replaced)
