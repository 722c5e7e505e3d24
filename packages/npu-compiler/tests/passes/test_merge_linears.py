"""Linear layers that read one input."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from npu_compiler.passes.fuse_linear import FuseLinear
from npu_compiler.passes.merge_linears import MergeLinears

PASSES = [FuseLinear(), MergeLinears()]
X, A, B = torch.randn(2, 3, 8), torch.randn(4, 8), torch.randn(6, 8)


def pair(x, a, b):
    return F.linear(x, a).view(2, 3, 2, 2), F.linear(x, b)


def test_layers_of_one_input_are_one(rewrites):
    done = rewrites(pair, X, A, B, passes=PASSES, weights=(1, 2))
    assert done.ops.count("aten.linear.default") == 1


def test_biases_are_joined_too(rewrites):
    function = lambda x, a, b, c, d: F.linear(x, a, c).sum() + F.linear(x, b, d).sum()  # noqa: E731
    inputs = X, A, B, torch.randn(4), torch.randn(6)
    done = rewrites(function, *inputs, passes=PASSES, weights=(1, 2, 3, 4))
    assert done.ops.count("aten.linear.default") == 1


def test_weights_that_are_inputs_stay(rewrites):
    assert rewrites(pair, X, A, B, passes=PASSES).count == 0


def test_layers_of_two_inputs_stay(rewrites):
    function = lambda x, y, a, b: (F.linear(x, a), F.linear(y, b))  # noqa: E731
    assert rewrites(function, X, X + 1, A, B, passes=PASSES, weights=(2, 3)).count == 0


def test_layer_with_a_bias_stays_beside_one_without(rewrites):
    function = lambda x, a, b, c: (F.linear(x, a), F.linear(x, b, c))  # noqa: E731
    done = rewrites(function, X, A, B, torch.randn(6), passes=PASSES, weights=(1, 2, 3))
    assert done.count == 0


def test_training_keeps_the_layers(rewrites):
    assert rewrites(pair, X, A, B, passes=PASSES, weights=(1, 2), kind="forward").count == 0
