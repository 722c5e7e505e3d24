"""Makes linear layers of the products that torch traces them into.

`linear` on a tensor of more than two axes becomes view, mm or addmm with a transposed weight, and
view again; as one call it lowers to one node and can be fused with what follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from npu_compiler.graph.nodes import sizes_of
from npu_compiler.passes.base import Facts
from npu_compiler.passes.fuse_pattern import FusePattern, Replacement
from npu_compiler.passes.pattern import Match, anything, call

__all__ = ["FuseLinear"]

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_WEIGHT = call(aten.t.default, anything("weight"))
_FLAT = call(_VIEWS, anything("x"), anything())
_MM = call(aten.mm.default, _FLAT, _WEIGHT)
_ADDMM = call(aten.addmm.default, anything("bias"), _FLAT, _WEIGHT, keywords=True, name="product")
_PLAIN_MM = call(aten.mm.default, anything("x"), _WEIGHT)
_PLAIN_ADDMM = call(
    aten.addmm.default, anything("bias"), anything("x"), _WEIGHT, keywords=True, name="product"
)


@dataclass(frozen=True)
class FuseLinear(FusePattern):
    """view, mm or addmm of a transposed weight, view -> aten.linear."""

    name = "fuse_linear"
    stage = "normalize"
    patterns = (
        call(_VIEWS, _MM, anything()),
        call(_VIEWS, _ADDMM, anything()),
        _PLAIN_MM,
        _PLAIN_ADDMM,
    )

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        product = match.named.get("product")
        if product is not None and product.kwargs:
            return None  # beta or alpha
        x, weight, bias = match["x"], match["weight"], match.named.get("bias")
        if not _are_rows(sizes_of(x), sizes_of(match.root), sizes_of(weight)):
            return None
        if bias is not None and sizes_of(bias) != sizes_of(weight)[:1]:
            return None  # broadcast in another way than linear's
        return Replacement(aten.linear.default, (x, weight, bias))


def _are_rows(given: tuple[Any, ...], result: tuple[Any, ...], weight: tuple[Any, ...]) -> bool:
    """Whether the product is of the input's last axis, and the others stay as they are."""
    return [str(size) for size in given] == [str(size) for size in (*result[:-1], weight[1])]
