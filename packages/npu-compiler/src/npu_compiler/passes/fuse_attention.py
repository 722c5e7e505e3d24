"""Makes one call of attention that a model writes as product, softmax and product.

Attention that a model calls by torch's own function is kept whole by npu_compiler.capture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler import capture  # noqa: F401  (defines npu_compiler::attention)
from npu_compiler.passes.base import Facts
from npu_compiler.passes.fuse_pattern import FusePattern, Replacement
from npu_compiler.passes.nodes import add_call, is_call, sizes_of, value_of
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


def _flat(inner: Pattern) -> Pattern:
    """A factor of four axes as the three that bmm takes."""
    return call(_VIEWS, optional(_COPY, optional(aten.expand.default, inner)), anything())


def _pattern() -> Pattern:
    product = call(aten.bmm.default, _flat(anything("query")), _flat(anything("turned_key")))
    scores = call(_VIEWS, product, anything(), name="scores")
    scaled = either(
        call(aten.mul.Tensor, scores, number("factor")),
        call(aten.div.Tensor, scores, number("divisor")),
        scores,
    )
    masked = either(call(aten.add.Tensor, scaled, anything("mask"), commutes=True), scaled)
    weights = call(aten._softmax.default, optional(_CAST, masked), anything("axis"), anything())
    weights = optional(_COPY, optional(_CAST, weights))
    result = call(aten.bmm.default, _flat(weights), _flat(anything("value")))
    return call(_VIEWS, result, anything())


@dataclass(frozen=True)
class FuseAttention(FusePattern):
    """softmax(query key^T scale + mask) value -> npu_compiler.attention.

    Source: Vaswani et al., Attention Is All You Need, arXiv 1706.03762, equation 1.
    """

    name = "fuse_attention"
    kinds = frozenset({"inference"})
    patterns = (_pattern(),)

    def _replacement(self, match: Match, facts: Facts) -> Replacement | None:
        query, value, mask = match["query"], match["value"], match.named.get("mask")
        dtype = value_of(query).dtype
        parts = (query, match["turned_key"], value)
        if any(value_of(part).dim() != 4 or value_of(part).dtype is not dtype for part in parts):
            return None
        if match["axis"] not in (-1, 3) or value_of(match["scores"]).dim() != 4:
            return None
        if mask is not None and not _is_mask(mask, match["scores"], dtype):
            return None
        scale = float(match.named.get("factor", 1.0)) / float(match.named.get("divisor", 1.0))
        args = (query, _key(match), value, mask, False, scale, False)
        return Replacement(torch.ops.npu_compiler.attention.default, args)


def _is_mask(mask: Any, scores: fx.Node, dtype: torch.dtype) -> bool:
    """Whether something added to the scores can be an attention mask."""
    if not isinstance(mask, fx.Node) or value_of(mask).dtype is not dtype:
        return False
    given, wanted = sizes_of(mask), sizes_of(scores)
    pairs = zip(reversed(given), reversed(wanted), strict=False)
    return len(given) <= 4 and all(a == 1 or str(a) == str(b) for a, b in pairs)


def _key(match: Match) -> fx.Node:
    turned: fx.Node = match["turned_key"]
    if is_call(turned, aten.transpose.int) and isinstance(turned.args[0], fx.Node):
        axes = {int(axis) % 4 for axis in turned.args[1:3]}  # type: ignore[arg-type]
        if axes == {2, 3}:
            return turned.args[0]
    root = match.root
    return add_call(root.graph, root, aten.transpose.int, (turned, 2, 3), origin=root)
