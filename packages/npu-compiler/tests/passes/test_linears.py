"""Linear layers out of products of transposed weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from npu_compiler.passes.linears import (
    BatchMatmuls,
    FuseAddmmRelu,
    FuseLinear,
    FuseLinearActivation,
    FuseSwiglu,
    MergeLinears,
)

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


PASS_FUSE_SWIGLU = FuseSwiglu()


@pytest.mark.parametrize(
    "function",
    [
        lambda g, u: F.silu(g) * u,
        lambda g, u: u * F.silu(g),
        lambda g, u: g * torch.sigmoid(g) * u,
    ],
    ids=["silu", "silu second", "sigmoid"],
)
def test_gate_becomes_one_call(rewrites, function):
    done = rewrites(function, torch.randn(2, 8), torch.randn(2, 8), passes=PASS_FUSE_SWIGLU)
    assert done.ops == ["npu.swiglu.default"]


def test_gate_of_another_dtype_stays(rewrites):
    function = lambda g, u: F.silu(g) * u  # noqa: E731
    gate, up = torch.randn(2, 8).bfloat16(), torch.randn(2, 8)
    assert rewrites(function, gate, up, passes=PASS_FUSE_SWIGLU).count == 0


def test_gate_that_is_read_elsewhere_stays(rewrites):
    function = lambda g, u: (s := F.silu(g), s * u)  # noqa: E731
    assert (
        rewrites(function, torch.randn(2, 8), torch.randn(2, 8), passes=PASS_FUSE_SWIGLU).count == 0
    )


def test_broadcast_stays(rewrites):
    function = lambda g, u: F.silu(g) * u  # noqa: E731
    assert (
        rewrites(function, torch.randn(2, 8), torch.randn(1, 8), passes=PASS_FUSE_SWIGLU).count == 0
    )


def test_product_with_a_number_stays(rewrites):
    assert (
        rewrites(lambda g: F.silu(g) * 2.0, torch.randn(2, 8), passes=PASS_FUSE_SWIGLU).count == 0
    )


PASSES_MERGE_LINEARS = [FuseLinear(), MergeLinears()]
X, A, B = torch.randn(2, 3, 8), torch.randn(4, 8), torch.randn(6, 8)


def pair(x, a, b):
    return F.linear(x, a).view(2, 3, 2, 2), F.linear(x, b)


def test_layers_of_one_input_are_one(rewrites):
    done = rewrites(pair, X, A, B, passes=PASSES_MERGE_LINEARS, weights=(1, 2))
    assert done.ops.count("aten.linear.default") == 1


def test_biases_are_joined_too(rewrites):
    function = lambda x, a, b, c, d: F.linear(x, a, c).sum() + F.linear(x, b, d).sum()  # noqa: E731
    inputs = X, A, B, torch.randn(4), torch.randn(6)
    done = rewrites(function, *inputs, passes=PASSES_MERGE_LINEARS, weights=(1, 2, 3, 4))
    assert done.ops.count("aten.linear.default") == 1


def test_weights_that_are_inputs_stay(rewrites):
    assert rewrites(pair, X, A, B, passes=PASSES_MERGE_LINEARS).count == 0


def test_layers_of_two_inputs_stay(rewrites):
    function = lambda x, y, a, b: (F.linear(x, a), F.linear(y, b))  # noqa: E731
    assert (
        rewrites(function, X, X + 1, A, B, passes=PASSES_MERGE_LINEARS, weights=(2, 3)).count == 0
    )


def test_layer_with_a_bias_stays_beside_one_without(rewrites):
    function = lambda x, a, b, c: (F.linear(x, a), F.linear(x, b, c))  # noqa: E731
    done = rewrites(
        function, X, A, B, torch.randn(6), passes=PASSES_MERGE_LINEARS, weights=(1, 2, 3)
    )
    assert done.count == 0


def test_training_keeps_the_layers(rewrites):
    assert (
        rewrites(pair, X, A, B, passes=PASSES_MERGE_LINEARS, weights=(1, 2), kind="forward").count
        == 0
    )


PASS_BATCH_MATMULS = BatchMatmuls()
X_BATCH_MATMULS = torch.randn(3, 4)
WEIGHTS = tuple(torch.randn(4, 4) for _ in range(3))


def branches(x, a, b, c):
    return (x @ a).relu() + ((x * 2) @ b).sin() + (x.cos() @ c)


def test_parallel_products_are_one(rewrites):
    done = rewrites(
        branches, X_BATCH_MATMULS, *WEIGHTS, passes=PASS_BATCH_MATMULS, weights=(1, 2, 3)
    )
    assert done.ops.count("aten.bmm.default") == 1
    assert "aten.mm.default" not in done.ops


def test_products_that_wait_for_each_other_stay(rewrites):
    function = lambda x, a, b, c: x @ a @ b @ c  # noqa: E731
    assert (
        rewrites(
            function, X_BATCH_MATMULS, *WEIGHTS, passes=PASS_BATCH_MATMULS, weights=(1, 2, 3)
        ).count
        == 0
    )


def test_two_products_stay(rewrites):
    function = lambda x, a, b: (x @ a) + (x @ b)  # noqa: E731
    assert (
        rewrites(
            function, X_BATCH_MATMULS, *WEIGHTS[:2], passes=PASS_BATCH_MATMULS, weights=(1, 2)
        ).count
        == 0
    )


def test_batch_matmuls_weights_that_are_inputs_stay(rewrites):
    assert rewrites(branches, X_BATCH_MATMULS, *WEIGHTS, passes=PASS_BATCH_MATMULS).count == 0


def test_large_factors_stay(rewrites):
    done = rewrites(
        branches, X_BATCH_MATMULS, *WEIGHTS, passes=BatchMatmuls(max_elements=11), weights=(1, 2, 3)
    )
    assert done.count == 0


def test_products_of_other_shapes_stay(rewrites):
    function = lambda x, a, b, c: (x @ a, x @ b, x @ c)  # noqa: E731
    weights = torch.randn(4, 4), torch.randn(4, 5), torch.randn(4, 6)
    assert (
        rewrites(
            function, X_BATCH_MATMULS, *weights, passes=PASS_BATCH_MATMULS, weights=(1, 2, 3)
        ).count
        == 0
    )
