"""Small rewrites that give a captured graph the form which the partitioner expects.

What is captured whole, before AOTAutograd, is decided in npu_compiler.capture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.utils import _pytree as pytree

from npu_compiler.partition import is_view

__all__ = ["drop_empty_parts", "separate_output_views"]

_CONCATENATIONS = (torch.ops.aten.cat.default, torch.ops.aten.concat.default)


def drop_empty_parts(graph: fx.Graph) -> None:
    """Removes tensors without elements from concatenations: an empty cache, an empty rest.

    Programs cannot take such tensors, and without them the concatenation needs nobody's help.
    """
    changed = False
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in _CONCATENATIONS:
            continue
        parts = list(cast(Sequence[fx.Node], node.args[0]))
        kept = [part for part in parts if not _is_empty(part)]
        dtype = node.meta["val"].dtype
        keeps_dtype = any(part.meta["val"].dtype == dtype for part in kept)
        if kept and len(kept) < len(parts) and keeps_dtype:
            node.args = (kept, *node.args[1:])
            changed = True
    if changed:
        graph.eliminate_dead_code()


def _is_empty(part: fx.Node) -> bool:
    shape: tuple[Any, ...] = tuple(part.meta["val"].shape)
    return any(isinstance(size, int) and size == 0 for size in shape)


def separate_output_views(graph: fx.Graph) -> None:
    """Gives outputs that share memory, with an input or with each other, view calls of their own.

    A program writes each result to new memory. Where a graph returns views of one tensor the views
    must be taken outside of programs; the copies made here have the output as their only user, so
    that programs keep their own.
    """
    output = next(node for node in graph.nodes if node.op == "output")
    results = [node for node in pytree.tree_leaves(output.args) if isinstance(node, fx.Node)]
    chains = {node: _view_chain(node) for node in dict.fromkeys(results)}
    roots = Counter(chain[-1] for chain in chains.values())
    replaced: dict[fx.Node, fx.Node] = {}
    for node, chain in chains.items():
        root = chain[-1]
        if len(chain) == 1 or (root.op != "placeholder" and roots[root] == 1):
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


def _view_chain(node: fx.Node) -> list[fx.Node]:
    """A node, what it is a view of, what that is a view of, ... down to what is no view."""
    chain = [node]
    while chain[-1].op == "call_function" and is_view(chain[-1]):
        source = chain[-1].args[0]
        if not isinstance(source, fx.Node):
            break
        chain.append(source)
    return chain
