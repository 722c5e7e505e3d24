"""Convolutions with the batch norm and the relu behind them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from npu_compiler.passes.fuse_conv_bn_relu import FuseConvBnRelu

PASS = FuseConvBnRelu()
INPUTS = (
    torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4), torch.rand(4) + 1,
    torch.randn(4), torch.randn(4),
)  # fmt: skip


def block(x, weight, mean, variance, scale, shift):
    y = F.conv2d(x, weight, stride=2, padding=1)
    normal = torch._native_batch_norm_legit_no_training(y, scale, shift, mean, variance, 0.1, 1e-5)
    return normal[0].relu()


def test_block_becomes_one_call(rewrites):
    assert rewrites(block, *INPUTS, passes=PASS).ops == ["npu.conv_bn_relu.default"]


def test_training_keeps_the_parts(rewrites):
    assert rewrites(block, *INPUTS, passes=PASS, kind="forward").count == 0


def test_norm_that_is_read_elsewhere_stays(rewrites):
    def function(x, weight, mean, variance, scale, shift):
        y = F.conv2d(x, weight)
        normal = torch._native_batch_norm_legit_no_training(
            y, scale, shift, mean, variance, 0.1, 1e-5
        )
        return normal[0].relu() + y

    assert rewrites(function, *INPUTS, passes=PASS).count == 0


def test_transposed_convolution_stays(rewrites):
    def function(x, weight, mean, variance, scale, shift):
        y = F.conv_transpose2d(x, weight.transpose(0, 1))
        normal = torch._native_batch_norm_legit_no_training(
            y, scale, shift, mean, variance, 0.1, 1e-5
        )
        return normal[0].relu()

    assert rewrites(function, *INPUTS, passes=PASS).count == 0
