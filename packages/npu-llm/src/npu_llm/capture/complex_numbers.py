"""Writes a graph's complex numbers as two real tensors each, for programs that have none.

Models that rotate pairs of features as complex numbers (DeepSeek V2) use few calls of them; others
stay as they are, and lowering names the one that it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_llm.capture.emitting import Emitter

__all__ = ["make_real"]

_aten = torch.ops.aten
_UNCHANGED = (_aten.to.dtype_layout, _aten.to.device, _aten.alias.default, _aten.detach.default)


@dataclass(frozen=True)
class _Pair:
    """A complex tensor's real and imaginary part."""

    real: fx.Node
    imaginary: fx.Node


def make_real(graph_module: fx.GraphModule) -> None:
    """Replaces calls with complex tensors by calls with real ones, in place."""
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
    """Returns a call's complex result as two real ones; None for any other call."""
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
