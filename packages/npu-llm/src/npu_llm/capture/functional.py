"""Leaves a traced graph without effects: calls that write, and switches of gradients.

Calls that write into a tensor become calls that return a new one.

make_fx already lets every later use of a written tensor read the writing call's result. Other
tensors that show the written memory are written once more from the new value, if they are read
later.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from npu_compiler.graph.origins import call_place
from npu_llm.capture.shared_memory import (
    NoWayBackError,
    computed,
    replaced,
    replayed,
    shown_through,
    way_from_owner,
)
from npu_llm.errors import CaptureError

__all__ = ["drop_grad_modes", "make_functional"]

_aten = torch.ops.aten


def drop_grad_modes(graph_module: fx.GraphModule) -> None:
    """Removes what `torch.no_grad` in a model's code leaves in a graph.

    A step is traced without gradients, so that the end of such a block would switch them off for
    whoever runs the graph.
    """
    for node in list(graph_module.graph.nodes):
        if node.target is torch._C._set_grad_enabled:
            graph_module.graph.erase_node(node)
    graph_module.recompile()


def make_functional(graph_module: fx.GraphModule) -> None:
    """Makes a graph functional, in place.

    Raises:
        CaptureError: [writes-view] if a call writes into memory that is not the graph's own, or
            into a view that cannot be undone and is read through another tensor later, or has no
            counterpart that returns a new tensor.
    """
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target._schema.is_mutable:
            _rewrite(node)
    graph_module.graph.lint()
    graph_module.recompile()


def _rewrite(node: fx.Node) -> None:
    """Makes one call return a new tensor, which all that shows the written memory reads later."""
    written, counterpart = node.args[0], _counterpart(node.target)
    if node.target is _aten.detach_.default and isinstance(written, fx.Node):
        node.replace_all_uses_with(written)  # changes no number
        node.graph.erase_node(node)
        return
    if counterpart is None or not isinstance(written, fx.Node):
        raise _refused(node, "has no counterpart that returns a new tensor")
    way = way_from_owner(written)
    owner = way[0]
    if owner.op != "call_function":
        raise _refused(node, "writes into an input or a weight")
    ways = {one: way_from_owner(one) for one in [owner, *shown_through(owner)]}
    later = _after(node)
    node.target = counterpart
    value = _kept_dtype(node, written)
    stale = {one: seen for one, seen in ways.items() if later & one.users.keys()}
    if not stale:
        return
    with node.graph.inserting_before(value.next):
        try:
            renewed = replaced(way, value)
        except NoWayBackError as failure:
            raise _refused(
                node, f"is read through another one later, and writes through {failure}"
            ) from None
        if renewed is not value:
            # It shows the owner too, into which a later call may write.
            stale[value] = way
        for one, seen in stale.items():
            new = replayed(seen, renewed)
            one.replace_all_uses_with(new, delete_user_cb=lambda user: user in later)


def _after(node: fx.Node) -> set[fx.Node]:
    """Returns the nodes of the graph that follow one."""
    found = set()
    node = node.next
    while node.op != "root":
        found.add(node)
        node = node.next
    return found


def _counterpart(target: Any) -> Any | None:
    """Returns the call that returns what another one writes into its first argument."""
    packet, schema = target.overloadpacket, target._schema
    name = packet.__name__
    writes = [
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in schema.arguments
    ]
    is_plain = writes[0] and not any(writes[1:]) and torch.Tag.inplace_view not in target.tags
    if not name.endswith("_") or not is_plain:
        return None
    found = getattr(torch.ops.aten, name.removesuffix("_"), None)
    return getattr(found, target._overloadname, None)


def _kept_dtype(node: fx.Node, written: fx.Node) -> fx.Node:
    """Returns the value of a call, cast to the dtype of what it wrote into before."""
    found = computed(node.target, node.args, node.kwargs)
    if found.dtype == written.meta["val"].dtype:
        return node
    with node.graph.inserting_after(node):
        cast = node.graph.call_function(_aten.to.dtype, (node, written.meta["val"].dtype))
    cast.meta = dict(node.meta)
    node.meta["val"] = found
    node.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)
    return cast


def _refused(node: fx.Node, reason: str) -> CaptureError:
    return CaptureError(
        f"{call_place(node)}: must write into memory of the step's own, by views "
        f"that can be undone; got one that {reason}. Models that do so are not supported yet.",
        code="writes-view",
    )
