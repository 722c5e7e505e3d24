"""Replaces calls that write into a tensor by calls that return a new one, in a traced graph.

make_fx already lets every later use of a written tensor read the writing call's result, so the
names stay right. What has to be checked is that no view shows the written memory.
"""

from __future__ import annotations

import torch
from torch import fx

from npu_llm.errors import CaptureError

__all__ = ["make_functional"]


def make_functional(graph_module: fx.GraphModule) -> None:
    """Makes a graph functional, in place.

    Raises:
        CaptureError: [writes-view] if a call writes into memory that another node of the graph
            sees, or has no counterpart that returns a new tensor.
    """
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if not node.target._schema.is_mutable:
            continue
        written = node.args[0]
        packet = node.target.overloadpacket
        name = packet.__name__
        counterpart = getattr(torch.ops.aten, name.removesuffix("_"), None)
        overload = getattr(counterpart, node.target._overloadname, None)
        is_sole = isinstance(written, fx.Node) and not _is_shared(written)
        if not name.endswith("_") or overload is None or not is_sole:
            raise CaptureError(
                f"{node.target} ({node.name}): must not write into memory that the step also reads "
                "elsewhere. Models that do so are not supported yet.",
                code="writes-view",
            )
        node.target = overload
    graph_module.recompile()


def _is_shared(node: fx.Node) -> bool:
    """Whether a tensor is a view, has one, or is not computed by the graph."""
    if node.op != "call_function":
        return True
    return _is_view(node) or any(_is_view(user) for user in node.users)


def _is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    return any(value.alias_info is not None and not value.alias_info.is_write for value in returns)
