"""Rewrites of a traced step: complex numbers, constants, and top-k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

__all__ = [
    "Emitter",
    "allow_short_contexts",
    "compute_known_numbers",
    "make_real",
]

_aten = torch.ops.aten
_UNCHANGED = (_aten.to.dtype_layout, _aten.to.device, _aten.alias.default, _aten.detach.default)


@dataclass(frozen=True)
class _Pair:
    """A complex tensor's real and imaginary part."""

    real: fx.Node
    imaginary: fx.Node


def make_real(graph_module: fx.GraphModule) -> None:
    """Replaces calls on complex tensors by calls on real ones, in place."""
    pairs: dict[fx.Node, _Pair] = {}
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function":
            continue
        with graph_module.graph.inserting_before(node):
            if node.target is _aten.view_as_real.default and node.args[0] in pairs:
                pair = pairs[node.args[0]]
                joined = Emitter(node)(_aten.stack.default, [pair.real, pair.imaginary], -1)
                node.replace_all_uses_with(joined)
                continue
            made = _pair_of(node, pairs)
        if made is not None:
            pairs[node] = made
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def _pair_of(node: fx.Node, pairs: dict[fx.Node, _Pair]) -> _Pair | None:
    """Returns a call's complex result as two real tensors; None for any other call."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_complex():
        return None
    emit, first = Emitter(node), node.args[0]
    if node.target is _aten.polar.default:
        angle = node.args[1]
        sides = (emit(call, angle) for call in (_aten.cos.default, _aten.sin.default))
        return _Pair(*(emit(_aten.mul.Tensor, first, side) for side in sides))
    if node.target is _aten.view_as_complex.default:
        return _Pair(*(emit(_aten.select.int, first, -1, part) for part in (0, 1)))
    if not isinstance(first, fx.Node) or first not in pairs:
        return None
    known = pairs[first]
    if node.target in _UNCHANGED and value.dtype is torch.complex64:
        return known
    if node.target is _aten.unsqueeze.default:
        parts = (known.real, known.imaginary)
        return _Pair(*(emit(node.target, part, _from_front(node)) for part in parts))
    if node.target is _aten.slice.Tensor:
        parts = (known.real, known.imaginary)
        return _Pair(*(emit(node.target, part, *node.args[1:]) for part in parts))
    if node.target is _aten.mul.Tensor:
        return _product(emit, known, node.args[1], pairs)
    return None


def _from_front(node: fx.Node) -> int:
    dim: Any = node.args[1]
    found: int = dim % node.meta["val"].dim()
    return found


def _product(emit: Emitter, left: _Pair, right: Any, pairs: dict[fx.Node, _Pair]) -> _Pair | None:
    """Returns a product with a complex tensor, a real tensor or a real number."""
    mul = _aten.mul.Tensor
    if right in pairs:
        other = pairs[right]
        one, two = emit(mul, left.real, other.real), emit(mul, left.imaginary, other.imaginary)
        three, four = emit(mul, left.real, other.imaginary), emit(mul, left.imaginary, other.real)
        return _Pair(emit(_aten.sub.Tensor, one, two), emit(_aten.add.Tensor, three, four))
    is_complex = isinstance(right, complex) or (
        isinstance(right, fx.Node) and right.meta["val"].is_complex()
    )
    if is_complex:
        return None
    return _Pair(emit(mul, left.real, right), emit(mul, left.imaginary, right))


_ORIGIN = ("nn_module_stack", "stack_trace")


class Emitter:
    """Adds calls to a graph, with fake values and the origin of a given call."""

    def __init__(self, beside: fx.Node) -> None:
        self._graph = beside.graph
        self._origin = {key: beside.meta[key] for key in _ORIGIN if key in beside.meta}
        self._mode = beside.meta["val"].fake_mode

    def __call__(self, target: Any, *args: Any) -> fx.Node:
        """Returns a new call of `target` at the graph's insertion point."""
        node = self._graph.call_function(target, args)
        node.meta.update(self._origin)
        with self._mode:
            node.meta["val"] = target(*fx.map_arg(args, lambda item: item.meta["val"]))
        return node


def compute_known_numbers(graph_module: fx.GraphModule) -> None:
    """Replaces calls on known one-element tensors by their results, in place.

    Args:
        graph_module: a traced step, with larger weights.
    """
    known: dict[fx.Node, Any] = {}
    for node in list(graph_module.graph.nodes):
        if node.op == "get_attr":
            held = getattr(graph_module, str(node.target), None)
            if _is_number(held):
                known[node] = held
        elif node.op == "call_function" and _is_computable(node, known):
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
            with torch.no_grad():
                value = node.target(*args, **kwargs)
            parts = value if isinstance(value, (list, tuple)) else [value]
            if all(_is_number(one) for one in parts):
                known[node] = value
    for place, (node, value) in enumerate(known.items()):
        is_read = any(user not in known for user in node.users)
        if node.op != "get_attr" and is_read and _is_number(value):
            name = f"known_number_{place}"
            graph_module.register_buffer(name, value, persistent=False)
            with graph_module.graph.inserting_before(node):
                constant = graph_module.graph.get_attr(name)
            constant.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(constant)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def _is_number(value: Any) -> bool:
    is_plain = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    return is_plain and value.dim() == 0


def _is_computable(node: fx.Node, known: dict[fx.Node, Any]) -> bool:
    """Whether all operands of a call are known, and it writes into none of them."""
    inputs = node.all_input_nodes
    if not inputs or any(one not in known for one in inputs):
        return False
    schema = getattr(node.target, "_schema", None)
    is_written = schema is not None and schema.is_mutable
    return not is_written or node.target is torch.ops.aten.detach_.default  # does not change values


def allow_short_contexts(graph_module: fx.GraphModule) -> None:
    """Limits each top-k along a dynamic dimension to the available size, in place.

    Args:
        graph_module: a step that was traced with a past longer than any such k.
    """
    graph = graph_module.graph
    for node in graph.find_nodes(op="call_function", target=_aten.topk.default):
        source, count, *rest = node.args
        dim = rest[0] if rest else -1
        length = source.meta["val"].shape[dim]
        if not isinstance(count, int) or isinstance(length, int):
            continue
        with graph.inserting_before(node):
            all_of_them = _sized(graph.call_function(_aten.sym_size.int, (source, dim)), length)
            least = graph.call_function(torch.sym_min, (count, all_of_them))
            _sized(least, torch.sym_min(count, length))  # type: ignore[no-untyped-call]
        node.args = (source, least, *rest)
    graph_module.recompile()


def _sized(node: fx.Node, value: Any) -> fx.Node:
    node.meta["val"] = value
    return node
