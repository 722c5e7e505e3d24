"""Makes one call of attention that a model writes as product, softmax and product.

Attention that a model calls by torch's own function is kept whole by npu_compiler.graph.whole_ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.graph import whole_ops as capture  # noqa: F401  (defines npu_compiler::attention)
from npu_compiler.graph.nodes import add_call, is_call, sizes_of, value_of
from npu_compiler.passes.base import Facts
from npu_compiler.passes.fuse_pattern import FusePattern, Replacement
from npu_compiler.passes.pattern import (
    Match,
    Pattern,
    anything,
    call,
    either,
    number,
    optional,
)

__all__ = ["FuseAttention"]

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_COPY = (aten.clone.default, aten.alias.default)
_CAST = aten._to_copy.default


def _flat(inner: Pattern, name: str) -> Pattern:
    """A factor as the three axes that bmm takes."""
    whole = optional(_COPY, optional(aten.expand.default, inner))
    return call(_VIEWS, whole, anything(), name=name)


def _pattern() -> Pattern:
    product = call(
        aten.bmm.default,
        _flat(anything("query"), "flat_query"),
        _flat(anything("turned_key"), "flat_key"),
        name="product",
    )
    scores = call(_VIEWS, product, anything(), name="scores")
    scaled = either(
        call(aten.mul.Tensor, scores, number("factor")),
        call(aten.div.Tensor, scores, number("divisor")),
        scores,
    )
    masked = either(call(aten.add.Tensor, scaled, anything("mask"), commutes=True), scaled)
    weights = call(aten._softmax.default, optional(_CAST, masked), anything("axis"), anything())
    weights = optional(_COPY, optional(_CAST, weights))
    result = call(
        aten.bmm.default,
        _flat(weights, "flat_weights"),
        _flat(anything("value"), "flat_value"),
    )
    return call(_VIEWS, result, anything())


@dataclass(frozen=True)
class FuseAttention(FusePattern):
    """softmax(query key^T scale + mask) value -> torch.ops.npu_compiler.attention.

    Source: Vaswani et al., Attention Is All You Need, arXiv 1706.03762, equation 1.
    """

    name = "fuse_attention"
    kinds = frozenset({"inference"})
    patterns = (_pattern(),)

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        scores, mask = match["scores"], match.named.get("mask")
        dtype = value_of(match["query"]).dtype
        parts = (match["turned_key"], match["value"])
        if any(value_of(part).dtype is not dtype for part in parts):
            return None
        if match["axis"] not in (-1, 3) or not _has_four_axes(match):
            return None
        if mask is not None and not _is_mask(mask, scores, dtype):
            return None
        *groups, rows, columns = sizes_of(scores)
        channels, width = sizes_of(match["flat_query"])[-1], sizes_of(match["flat_value"])[-1]
        query = _of_four_axes(match, "query", "flat_query", (*groups, rows, channels))
        key = _of_four_axes(match, "turned_key", "flat_key", (*groups, channels, columns))
        value = _of_four_axes(match, "value", "flat_value", (*groups, columns, width))
        scale = float(match.named.get("factor", 1.0)) / float(match.named.get("divisor", 1.0))
        args = (query, _turned_back(key, match), value, mask, False, scale, False)
        return Replacement(torch.ops.npu_compiler.attention.default, args)


def _is_mask(mask: Any, scores: fx.Node, dtype: torch.dtype) -> bool:
    """Whether something added to the scores can be an attention mask."""
    if not isinstance(mask, fx.Node) or value_of(mask).dtype is not dtype:
        return False
    given, wanted = sizes_of(mask), sizes_of(scores)
    pairs = zip(reversed(given), reversed(wanted), strict=False)
    return len(given) <= 4 and all(a == 1 or str(a) == str(b) for a, b in pairs)


def _has_four_axes(match: Match) -> bool:
    """Whether the scores have four axes, and both products the last two of them."""
    scores, product = sizes_of(match["scores"]), sizes_of(match["product"])
    weights = sizes_of(match["flat_weights"])
    return len(scores) == 4 and _are_equal(weights, product) and _are_equal(scores[2:], product[1:])


def _are_equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether sizes are the same, symbolic ones too."""
    return list(map(str, left)) == list(map(str, right))


def _of_four_axes(match: Match, name: str, flat: str, wanted: tuple[Any, ...]) -> fx.Node:
    """A factor of these sizes, or of 1 where it is the same for all rows or heads.

    What the model took the factor from may have other axes: views that follow each other are one by
    now, as from (rows, heads * channels, height, width) to (rows * heads, channels, tokens).
    """
    factor: fx.Node = match[name]
    given = sizes_of(factor)
    if len(given) == 4 and _are_equal(given[2:], wanted[2:]):
        groups = zip(given[:2], wanted[:2], strict=True)
        if all(size == 1 or str(size) == str(other) for size, other in groups):
            return factor
    root = match.root
    return add_call(root.graph, root, aten.view.default, (match[flat], list(wanted)), origin=root)


def _turned_back(turned: fx.Node, match: Match) -> fx.Node:
    """The key, of which the product took the transpose."""
    if is_call(turned, aten.transpose.int) and isinstance(turned.args[0], fx.Node):
        axes = {int(axis) % 4 for axis in turned.args[1:3]}  # type: ignore[arg-type]
        if axes == {2, 3}:
            return turned.args[0]
    root = match.root
    return add_call(root.graph, root, aten.transpose.int, (turned, 2, 3), origin=root)
