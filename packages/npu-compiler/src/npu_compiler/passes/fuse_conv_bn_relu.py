"""Joins a convolution, the batch norm behind it, and a relu.

In inference alone: in training the norm's statistics are of the batch.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.passes.base import Facts
from npu_compiler.passes.fuse_pattern import FusePattern, Replacement
from npu_compiler.passes.pattern import Match, anything, call

__all__ = ["FuseConvBnRelu"]

aten = torch.ops.aten

_CONVOLUTION = call(aten.convolution.default, anything(), name="convolution")
_NORM = call(
    aten._native_batch_norm_legit_no_training.default, _CONVOLUTION, anything(), name="norm"
)


@dataclass(frozen=True)
class FuseConvBnRelu(FusePattern):
    """convolution, batch norm of running statistics, relu -> npu.conv_bn_relu."""

    name = "fuse_conv_bn_relu"
    kinds = frozenset({"inference"})
    patterns = (call(aten.relu.default, call(operator.getitem, _NORM, 0)),)

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        x, weight, bias, stride, padding, dilation, transposed, _, groups = match[
            "convolution"
        ].args
        if transposed:
            return None
        _, bn_weight, bn_bias, mean, variance, _, eps = match["norm"].args
        args = (x, weight, bias, mean, variance, bn_weight, bn_bias)
        form = {"stride": stride, "padding": padding, "dilation": dilation}
        form |= {"groups": groups, "eps": eps}
        return Replacement(torch.ops.npu.conv_bn_relu.default, args, form)
