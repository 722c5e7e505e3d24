"""Joins a linear layer or a product with the activation that follows.

The activations are those that torch.ops.npu has an op for: relu and gelu.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.passes.base import Facts
from npu_compiler.passes.fuse_pattern import FusePattern, Replacement
from npu_compiler.passes.pattern import Match, anything, call

__all__ = ["FuseAddmmRelu", "FuseLinearActivation"]

aten = torch.ops.aten


@dataclass(frozen=True)
class FuseLinearActivation(FusePattern):
    """linear, relu -> npu.linear_relu; linear, gelu -> npu.linear_gelu."""

    name = "fuse_linear_activation"
    patterns = (
        call(aten.relu.default, call(aten.linear.default, anything(), name="linear")),
        call(
            aten.gelu.default,
            call(aten.linear.default, anything(), name="linear"),
            keywords=True,
        ),
    )

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        x, weight, *rest = match["linear"].args
        bias = rest[0] if rest else None
        if match.root.target is aten.relu.default:
            return Replacement(torch.ops.npu.linear_relu.default, (x, weight, bias))
        form = match.root.kwargs.get("approximate", "none")
        return Replacement(
            torch.ops.npu.linear_gelu.default, (x, weight, bias), {"approximate": form}
        )


@dataclass(frozen=True)
class FuseAddmmRelu(FusePattern):
    """addmm, relu -> npu.addmm_relu; for products whose weight is not transposed."""

    name = "fuse_addmm_relu"
    patterns = (
        call(aten.relu.default, call(aten.addmm.default, anything(), keywords=True, name="addmm")),
    )

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        addmm = match["addmm"]
        beta, alpha = addmm.kwargs.get("beta", 1), addmm.kwargs.get("alpha", 1)
        scales = {"beta": beta, "alpha": alpha}
        return Replacement(torch.ops.npu.addmm_relu.default, addmm.args, scales)
