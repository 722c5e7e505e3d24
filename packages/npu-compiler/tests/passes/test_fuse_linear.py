"""Linear layers out of products of transposed weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from npu_compiler.passes.fuse_linear import FuseLinear

PASS = FuseLinear()


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_layer_becomes_one_call(rewrites, shape, with_bias):
    bias = (torch.randn(5),) if with_bias else ()
    done = rewrites(F.linear, torch.randn(shape), torch.randn(5, 4), *bias, passes=PASS)
    assert done.ops == ["aten.linear.default"]


def test_layers_of_one_input_become_one_call_each(rewrites):
    function = lambda x, a, b: F.linear(x, a) + F.linear(x, b)  # noqa: E731
    weights = torch.randn(5, 4), torch.randn(5, 4)
    done = rewrites(function, torch.randn(2, 3, 4), *weights, passes=PASS)
    assert done.ops.count("aten.linear.default") == 2
    assert "aten.mm.default" not in done.ops


def test_product_that_is_used_twice_keeps_its_view(rewrites):
    function = lambda x, w: (p := x.view(6, 4) @ w.t(), p.view(2, 3, 5).sin())  # noqa: E731
    done = rewrites(function, torch.randn(2, 3, 4), torch.randn(5, 4), passes=PASS)
    assert done.ops.count("aten.linear.default") == 1
    assert "aten.view.default" in done.ops


def test_rows_cut_elsewhere_stay(rewrites):
    function = lambda x, w: (x.view(4, 4) @ w.t()).view(2, 2, 5)  # noqa: E731
    done = rewrites(function, torch.randn(2, 8), torch.randn(5, 4), passes=PASS)
    assert "aten.view.default" in done.ops


def test_scaled_addition_stays(rewrites):
    function = lambda b, x, w: torch.addmm(b, x, w.t(), beta=2)  # noqa: E731
    inputs = torch.randn(5), torch.randn(3, 4), torch.randn(5, 4)
    assert rewrites(function, *inputs, passes=PASS).count == 0


def test_bias_of_another_shape_stays(rewrites):
    function = lambda b, x, w: torch.addmm(b, x, w.t())  # noqa: E731
    inputs = torch.randn(3, 1), torch.randn(3, 4), torch.randn(5, 4)
    assert rewrites(function, *inputs, passes=PASS).count == 0
