"""The calls that a Python function makes of tensors, put into a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

__all__ = ["inlined"]


def inlined(
    graph: fx.Graph,
    node: fx.Node,
    function: Callable[..., Any],
    tensors: Sequence[fx.Node],
) -> list[fx.Node]:
    """Puts the calls of a function before a node, of which they get the origin.

    Args:
        graph: with fake values in `meta["val"]`.
        node: before which the calls stand.
        function: of the tensors, with torch functions alone.
        tensors: nodes of the graph.

    Returns:
        The nodes of the tensors that the function returns, in order.
    """
    fakes = [tensor.meta["val"] for tensor in tensors]
    with torch.no_grad(), fakes[0].fake_mode:
        traced = make_fx(function)(*fakes)
    traced.graph.eliminate_dead_code()
    inputs = (one for one in traced.graph.nodes if one.op == "placeholder")
    at = dict(zip(inputs, tensors, strict=True))
    with graph.inserting_before(node):
        for one in traced.graph.nodes:
            if one.op == "call_function":
                at[one] = graph.node_copy(one, at.__getitem__)
                at[one].meta = {**node.meta, "val": one.meta["val"]}
    (results,) = (one.args[0] for one in traced.graph.nodes if one.op == "output")
    return [at[one] for one in pytree.tree_leaves(results)]
