"""Makes npu.swiglu of silu times the other half of a gated layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.graph.nodes import sizes_of
from npu_compiler.passes.base import Facts
from npu_compiler.passes.fuse_pattern import FusePattern, Replacement
from npu_compiler.passes.pattern import Match, anything, call, either

__all__ = ["FuseSwiglu"]

aten = torch.ops.aten

_GATE = anything("gate")
_SILU = either(
    call(aten.silu.default, _GATE),
    call(aten.mul.Tensor, _GATE, call(aten.sigmoid.default, _GATE), commutes=True),
)


@dataclass(frozen=True)
class FuseSwiglu(FusePattern):
    """silu(gate) * up -> npu.swiglu.

    Source: Shazeer, GLU Variants Improve Transformer, arXiv 2002.05202.
    """

    name = "fuse_swiglu"
    patterns = (call(aten.mul.Tensor, _SILU, anything("up"), commutes=True),)

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        gate, up = match["gate"], match["up"]
        if not isinstance(up, torch.fx.Node) or sizes_of(gate) != sizes_of(up):
            return None
        return Replacement(torch.ops.npu.swiglu.default, (gate, up))
