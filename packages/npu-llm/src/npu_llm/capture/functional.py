"""Functionalization of a traced graph: in-place calls become calls that return a new tensor.

make_fx already makes later uses of a modified tensor read the in-place call's result. Other tensors
that alias the modified memory are recomputed from the new value if they are read later. A view is a
path from the tensor that owns the memory. If each call of the path is invertible, a new value of
the view gives a new value of the owner.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from npu_compiler.graph.origins import call_place
from npu_llm.errors import CaptureError

__all__ = [
    "NoWayBackError",
    "computed",
    "drop_grad_modes",
    "make_functional",
    "replaced",
    "replayed",
    "shown_through",
    "way_from_owner",
]

_aten = torch.ops.aten


def drop_grad_modes(graph_module: fx.GraphModule) -> None:
    """Removes the traces of `torch.no_grad` from a graph.

    A step is traced without gradients, so the end of such a block would disable them for the
    graph's caller.
    """
    for node in list(graph_module.graph.nodes):
        if node.target is torch._C._set_grad_enabled:
            graph_module.graph.erase_node(node)
    graph_module.recompile()


def make_functional(graph_module: fx.GraphModule) -> None:
    """Makes a graph functional, in place.

    Raises:
        CaptureError: [writes-view] if a call writes into memory outside the graph, or into a
            non-invertible view that is read through another tensor later, or has no functional
            counterpart.
    """
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target._schema.is_mutable:
            _rewrite(node)
    graph_module.graph.lint()
    graph_module.recompile()


def _rewrite(node: fx.Node) -> None:
    """Makes one call return a new tensor, which later reads of the written memory use."""
    written, counterpart = node.args[0], _counterpart(node.target)
    if node.target is _aten.detach_.default and isinstance(written, fx.Node):
        node.replace_all_uses_with(written)  # does not change values
        node.graph.erase_node(node)
        return
    if counterpart is None or not isinstance(written, fx.Node):
        raise _refused(node, "has no functional counterpart")
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
            # It also aliases the owner, into which a later call may write.
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
    """Returns the functional counterpart of an in-place call."""
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
    """Returns a call's value, cast to the dtype of the tensor that it wrote into before."""
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
        f"{call_place(node)} must write only into the step's memory, through invertible views, "
        f"got a call that {reason}. Models that do so are not supported yet.",
        code="writes-view",
    )


_RESHAPES = {
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.reshape.default,
    _aten.view_as.default,
    _aten.reshape_as.default,
    _aten.flatten.using_ints,
    _aten.unflatten.int,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.unsqueeze.default,
}
_SAME = {
    _aten.alias.default,
    _aten.detach.default,
    _aten.contiguous.default,
    _aten.dropout.default,
    _aten.to.dtype,
    _aten.to.device,
    _aten.to.dtype_layout,
    _aten.to.other,
    _aten.type_as.default,
}


class NoWayBackError(Exception):
    """A view with a call that is not invertible."""


def way_from_owner(node: fx.Node) -> list[fx.Node]:
    """Returns the chain of calls from the memory's owner to a tensor, owner first."""
    way = [node]
    while (shown := _shown(way[0])) is not None:
        way.insert(0, shown)
    return way


def shown_through(owner: fx.Node) -> list[fx.Node]:
    """Returns all other tensors of the graph that alias an owner's memory, in order."""
    found: list[fx.Node] = []
    pending = [owner]
    while pending:
        one = pending.pop()
        for user in one.users:
            if user not in found and _is_shown_by(one, user):
                found.append(user)
                pending.append(user)
    order = {node: place for place, node in enumerate(owner.graph.nodes)}
    return sorted(found, key=order.__getitem__)


def _shown(node: fx.Node) -> fx.Node | None:
    """Returns the tensor that a call's result aliases; None if it has separate memory."""
    found = next((one for one in node.all_input_nodes if _is_shown_by(one, node)), None)
    if found is not None and node.target is operator.getitem and _shown(found) is None:
        return None  # one of several new results
    return found


def _is_shown_by(source: fx.Node, node: fx.Node) -> bool:
    """Whether a call's result aliases its argument; found by a call, as for reshape."""
    if node.op != "call_function" or not _tensors(source.meta.get("val")):
        return False
    if node.target is not operator.getitem and not isinstance(node.target, torch._ops.OpOverload):
        return False
    if isinstance(node.target, torch._ops.OpOverload) and _makes_new(node.target):
        return False
    memory = {one.untyped_storage()._cdata for one in _tensors(source.meta["val"])}
    result = computed(node.target, node.args, node.kwargs)
    return any(one.untyped_storage()._cdata in memory for one in _tensors(result))


def _makes_new(target: torch._ops.OpOverload) -> bool:
    """Whether a call writes, or always allocates its result, by the schema of a single op."""
    schema = target._schema
    is_made_of_others = torch._C._dispatch_has_kernel_for_dispatch_key(
        target._name, "CompositeImplicitAutograd"
    )
    is_new = not is_made_of_others and all(one.alias_info is None for one in schema.returns)
    return schema.is_mutable or is_new


def _tensors(value: Any) -> list[torch.Tensor]:
    return [
        one
        for one in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(one, torch.Tensor)
    ]


def computed(target: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns the result of a graph's call for the values in its arguments' `meta`."""
    given, named = fx.map_arg((tuple(args), dict(kwargs)), lambda one: one.meta["val"])
    with torch.no_grad():
        return target(*given, **named)


def _call(like: fx.Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
    """Inserts a call with the origin of another call."""
    made = like.graph.call_function(target, args, kwargs)
    made.meta = {**like.meta, "val": computed(target, made.args, made.kwargs)}
    return made


def replayed(way: Sequence[fx.Node], owner: fx.Node) -> fx.Node:
    """Inserts a chain of calls again on another owner; returns the last call."""
    seen = owner
    for before, node in itertools.pairwise(way):
        known = {before: seen}
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), partial(_instead, known))
        seen = _call(node, node.target, *args, **kwargs)  # type: ignore[arg-type]
    return seen


def _instead(known: Mapping[fx.Node, fx.Node], node: fx.Node) -> fx.Node:
    return known.get(node, node)


def replaced(way: Sequence[fx.Node], value: fx.Node) -> fx.Node:
    """Inserts calls that give the owner after a view at the end of a chain has changed.

    Raises:
        NoWayBackError: for a view that is not invertible.
    """
    left = list(way)
    while len(left) > 1:
        node = left.pop()
        if node.target is operator.getitem:
            left.pop()  # a split and its getitem are one view
            value = _part_replaced(left[-1], node, value)
        else:
            value = _undone(left[-1], node, value)
    return value


def _undone(before: fx.Node, node: fx.Node, value: fx.Node) -> fx.Node:
    """Inserts the call that gives a view's source after the view has changed."""
    target, args = node.target, node.args
    if node.kwargs:
        raise NoWayBackError(str(target))
    if target in _SAME:
        return value
    if target in _RESHAPES:
        return _call(value, _aten.view.default, value, _sizes(before))
    if target is _aten.slice.Tensor:
        return _call(value, _aten.slice_scatter.default, before, value, *args[1:])
    if target is _aten.select.int:
        return _call(value, _aten.select_scatter.default, before, value, *args[1:])
    if target is _aten.t.default:
        return _call(value, target, value)
    if target is _aten.transpose.int:
        return _call(value, target, value, *args[1:])
    if target is _aten.permute.default:
        dims: Any = args[1]
        order = [dim % len(dims) for dim in dims]
        back = [order.index(dim) for dim in range(len(order))]
        return _call(value, target, value, back)
    raise NoWayBackError(str(target))


def _part_replaced(before: fx.Node, node: fx.Node, value: fx.Node) -> fx.Node:
    """Inserts the call that gives a tensor with one of its parts replaced."""
    split: Any = node.args[0]
    place: Any = node.args[1]
    dim = split.args[2] if len(split.args) > 2 else split.kwargs.get("dim", 0)
    if split.target is _aten.unbind.int:
        dim = split.args[1] if len(split.args) > 1 else 0
        return _call(value, _aten.select_scatter.default, before, value, dim, place)
    if split.target not in (
        _aten.split.Tensor, _aten.split_with_sizes.default, _aten.chunk.default,
    ):  # fmt: skip
        raise NoWayBackError(str(split.target))
    sizes = [one.shape[dim] for one in split.meta["val"]]
    if not all(isinstance(size, int) for size in sizes):
        raise NoWayBackError(str(split.target))
    start = sum(sizes[:place])
    return _call(
        value, _aten.slice_scatter.default, before, value, dim, start, start + sizes[place]
    )


def _sizes(node: fx.Node) -> list[Any]:
    """Returns a tensor's sizes as arguments of a call."""
    return [
        size if isinstance(size, int) else _call(node, _aten.sym_size.int, node, dim)
        for dim, size in enumerate(node.meta["val"].shape)
    ]
