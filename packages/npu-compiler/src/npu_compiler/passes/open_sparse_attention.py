"""Opens `npu.sparse_attention` into the calls it consists of, for the device's compiler.

On the host's cores it stays one call, which writes its caches in place. A program returns the
written caches, and the copies at the graph's end carry them into the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2

from npu_compiler.passes.base import Facts, GraphPass
from npu_compiler.passes.inlining import inlined
from npu_compiler.passes.write_in_place import written_arguments
from npu_ops.sparse_attention import sparse_attention

__all__ = ["OpenSparseAttention"]

_BLOCK = torch.ops.npu.sparse_attention.default
_CACHES = ("kv_cache", "kr_cache", "idx_cache")


@dataclass(frozen=True)
class OpenSparseAttention(GraphPass):
    """Replaces the block by its parts, where each cache is a tensor of its own."""

    name = "open_sparse_attention"
    stage = "normalize"
    kinds = frozenset({"inference"})

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        if not facts.for_device:
            return 0
        return sum(
            _open(graph, node)
            for node in list(graph.nodes)
            if node.op == "call_function"
            and node.target is auto_functionalized_v2
            and node.args[0] is _BLOCK
        )


def _open(graph: fx.Graph, node: fx.Node) -> bool:
    plans = written_arguments(_BLOCK, node)
    if plans is None or any(view is not None for _, view in plans.values()):
        return False
    bases = cast(Any, node.kwargs["_all_bases"])
    given = {
        argument.name: bases[plans[argument.name][0]]
        if argument.name in plans
        else node.kwargs[argument.name]
        for argument in _BLOCK._schema.arguments
    }
    y, caches = _inlined(graph, node, given)
    results = {0: y} | {
        1 + plans[name][0]: cache for name, cache in zip(_CACHES, caches, strict=True)
    }
    for user in list(node.users):
        user.replace_all_uses_with(results[cast(int, user.args[1])])
        graph.erase_node(user)
    graph.erase_node(node)
    return True


def _inlined(
    graph: fx.Graph, node: fx.Node, given: dict[str, Any]
) -> tuple[fx.Node, tuple[fx.Node, ...]]:
    """Puts the parts before a node; returns the nodes of y and of the written caches."""
    names = [name for name, value in given.items() if isinstance(value, fx.Node)]
    fixed = {name: value for name, value in given.items() if name not in names}

    def parts(*tensors: torch.Tensor) -> Any:
        return sparse_attention.functional(**dict(zip(names, tensors, strict=True)), **fixed)

    y, *caches = inlined(graph, node, parts, [given[name] for name in names])
    return y, tuple(caches)
