"""Linear layers with the activation behind them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from npu_compiler.passes.fuse_linear import FuseLinear
from npu_compiler.passes.fuse_linear_activation import FuseAddmmRelu, FuseLinearActivation

PASSES = [FuseLinear(), FuseLinearActivation()]
INPUTS = torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5)


@pytest.mark.parametrize(
    "activation, op",
    [
        (F.relu, "npu.linear_relu.default"),
        (F.gelu, "npu.linear_gelu.default"),
        (lambda x: F.gelu(x, approximate="tanh"), "npu.linear_gelu.default"),
    ],
)
def test_activation_is_joined(rewrites, activation, op):
    done = rewrites(lambda *a: activation(F.linear(*a)), *INPUTS, passes=PASSES)
    assert done.ops == [op]


def test_layer_that_is_read_elsewhere_stays(rewrites):
    function = lambda *a: (y := F.linear(*a), F.relu(y))  # noqa: E731
    assert rewrites(function, *INPUTS, passes=PASSES).count == 0


def test_activation_that_is_to_run_eagerly_stays(rewrites):
    kept = frozenset({"aten.relu.default"})
    done = rewrites(lambda *a: F.relu(F.linear(*a)), *INPUTS, passes=PASSES, kept_ops=kept)
    assert done.count == 0


def test_product_of_a_plain_weight_is_joined(rewrites):
    function = lambda b, x, w: torch.addmm(b, x, w, beta=2, alpha=3).relu()  # noqa: E731
    inputs = torch.randn(5), torch.randn(3, 4), torch.randn(4, 5)
    assert rewrites(function, *inputs, passes=FuseAddmmRelu()).ops == ["npu.addmm_relu.default"]
