"""Makes npu.rms_norm of a root mean square norm written out, as transformers' models have it.

In half precision the models compute in float32 between two casts; the fused op does so too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.graph.nodes import sizes_of, value_of
from npu_compiler.passes.base import Facts
from npu_compiler.passes.fuse_pattern import FusePattern, Replacement
from npu_compiler.passes.pattern import Match, Pattern, anything, call, either, number, optional

__all__ = ["FuseRmsNorm"]

aten = torch.ops.aten

_CAST = aten._to_copy.default
_MUL = aten.mul.Tensor


def _norm() -> Pattern:
    x = anything("wide")
    square = either(call(aten.pow.Tensor_Scalar, x, number("two")), call(_MUL, x, x))
    mean = call(aten.mean.dim, square, anything("axes"), True)
    root = call(aten.rsqrt.default, call(aten.add.Tensor, mean, number("eps")))
    return call(_MUL, x, root, commutes=True)


@dataclass(frozen=True)
class FuseRmsNorm(FusePattern):
    """x * rsqrt(mean(x^2) + eps) * weight over the last axis -> npu.rms_norm.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467.
    """

    name = "fuse_rms_norm"
    patterns = (
        call(_MUL, optional(_CAST, _norm()), anything("weight"), commutes=True),
        call(_CAST, call(_MUL, _norm(), anything("weight"), commutes=True), keywords=True),
    )

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        wide, weight = match["wide"], match["weight"]
        if not isinstance(weight, torch.fx.Node) or match.named.get("two", 2) != 2:
            return None
        if tuple(match["axes"]) not in ((-1,), (value_of(wide).dim() - 1,)):
            return None
        if sizes_of(weight) != sizes_of(wide)[-1:]:
            return None
        dtype = value_of(match.root).dtype
        narrow = wide.args[0] if wide.target is _CAST else wide
        x = next((part for part in (wide, narrow) if value_of(part).dtype is dtype), None)
        if x is None or not value_of(weight).dtype.is_floating_point:
            return None
        return Replacement(torch.ops.npu.rms_norm.default, (x, weight, match["eps"]))
