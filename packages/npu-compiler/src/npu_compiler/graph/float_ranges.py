"""Bounds of floats that a short chain of calls computes from integers and casts back.

Infinities and NaN are ignored, because torch does not define their casts to integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

__all__ = ["cast_bounds"]

aten = torch.ops.aten

_CASTS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
_UNCHANGED = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default,
    aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int,
    aten.clone.default, aten.alias.default, aten.detach.default, aten.flip.default,
    aten.amax.default, aten.amin.default, aten.max.default, aten.min.default,
    aten.index_select.default, aten.gather.default,
}  # fmt: skip
_WITHIN_ONE = {
    aten.sigmoid.default: (0.0, 1.0),
    aten.tanh.default: (-1.0, 1.0),
    aten.sin.default: (-1.0, 1.0),
    aten.cos.default: (-1.0, 1.0),
    aten.sign.default: (-1.0, 1.0),
    aten._softmax.default: (0.0, 1.0),
    aten.rand.default: (0.0, 1.0),
    aten.rand_like.default: (0.0, 1.0),
}
_WHOLE = (aten.floor.default, aten.ceil.default, aten.round.default, aten.trunc.default)
# Logarithm of the smallest positive float32.
_LEAST_LOG = -104.0

Bounds = tuple[float, float]
# An interval of an integer node or number, with `low` and `high`.
Get = Callable[[Any], Any]


def cast_bounds(node: fx.Node, get: Get) -> tuple[int, int] | None:
    """Returns bounds of a cast from finite floats to integers; None if unknown, or another call."""
    source = node.args[0] if node.target in _CASTS else None
    if not isinstance(source, fx.Node) or not source.meta["val"].dtype.is_floating_point:
        return None
    found = _bounds(source, get)
    # Rounding may exceed the bound slightly.
    return None if found is None else (math.floor(found[0]) - 1, math.ceil(found[1]) + 1)


def _bounds(node: Any, get: Get) -> Bounds | None:
    if isinstance(node, (int, float)):
        return (float(node), float(node)) if math.isfinite(node) else None
    if not isinstance(node, fx.Node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    if not node.meta["val"].dtype.is_floating_point:
        interval = get(node)
        return float(interval.low), float(interval.high)
    target: Any = node.target
    if target in _WITHIN_ONE:
        return _WITHIN_ONE[target]
    if target in (aten.full.default, aten.full_like.default):
        return _bounds(node.args[1], get)
    if target in (aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default):
        return _clamped(node, get)
    if target in (aten.where.self, aten.minimum.default, aten.maximum.default):
        return _either([_bounds(one, get) for one in node.args[-2:]])
    first = _bounds(node.args[0], get) if node.args else None
    return None if first is None else _of_first(node, first, get)


def _either(choices: Sequence[Bounds | None]) -> Bounds | None:
    known = [one for one in choices if one is not None]
    if len(known) < len(choices):
        return None
    return min(one[0] for one in known), max(one[1] for one in known)


def _of_first(node: fx.Node, first: Bounds, get: Get) -> Bounds | None:
    """Returns a call's bounds from those of its first argument."""
    target: Any = node.target
    if target in _UNCHANGED or target in _CASTS:
        return first
    if target in _WHOLE:
        return first[0] - 1, first[1] + 1
    if target is aten.log.default:
        return _LEAST_LOG, math.log(max(first[1], 1.0))
    if target is aten.neg.default:
        return -first[1], -first[0]
    if target is aten.abs.default:
        return 0.0, max(abs(first[0]), abs(first[1]))
    return _arithmetic(node, first, get)


def _arithmetic(node: fx.Node, first: Bounds, get: Get) -> Bounds | None:
    target: Any = node.target
    other = _bounds(node.args[1], get) if len(node.args) > 1 else None
    if other is None or node.kwargs.get("alpha", 1) != 1:
        return None
    if target in (aten.add.Tensor, aten.add.Scalar):
        return first[0] + other[0], first[1] + other[1]
    if target in (aten.sub.Tensor, aten.sub.Scalar):
        return first[0] - other[1], first[1] - other[0]
    if target in (aten.mul.Tensor, aten.mul.Scalar):
        ends = [a * b for a in first for b in other]
        return min(ends), max(ends)
    if target in (aten.div.Tensor, aten.div.Scalar) and other[0] * other[1] > 0:
        ends = [a / b for a in first for b in other]
        return min(ends), max(ends)
    return None


def _clamped(node: fx.Node, get: Get) -> Bounds | None:
    names: dict[Any, tuple[str, ...]] = {
        aten.clamp_min.default: ("min",),
        aten.clamp_max.default: ("max",),
    }
    given = dict(zip(names.get(node.target, ("min", "max")), node.args[1:], strict=False))
    given.update(node.kwargs)
    own = _bounds(node.args[0], get) or (-math.inf, math.inf)
    low, high = _bounds(given.get("min"), get), _bounds(given.get("max"), get)
    if low is not None:
        own = max(own[0], low[0]), max(own[1], low[1])
    if high is not None:
        own = min(own[0], high[0]), min(own[1], high[1])
    return own if all(map(math.isfinite, own)) else None
