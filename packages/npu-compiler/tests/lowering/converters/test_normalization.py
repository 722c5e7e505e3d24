"""Norms against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_layer_norm_equals_eager(lowers, dtype, whole):
    w, b = torch.randn(8).to(dtype), torch.randn(8).to(dtype)
    lowers(
        lambda x, w, b: F.layer_norm(x, (8,), w, b),
        torch.randn(2, 3, 8).to(dtype),
        w,
        b,
        whole=whole,
    )


def test_layer_norm_over_two_axes_without_weights(lowers):
    lowers(lambda x: F.layer_norm(x, (3, 8)), torch.randn(2, 3, 8))


def test_layer_norm_statistics_equal_eager(lowers):
    lowers(lambda x: aten.native_layer_norm(x, [8], None, None, 1e-5), torch.randn(2, 3, 8))


def test_layer_norm_gradients_equal_eager(lowers):
    x, w, b = torch.randn(2, 3, 8), torch.randn(8), torch.randn(8)
    _, mean, rstd = aten.native_layer_norm(x, [8], w, b, 1e-5)
    lowers(
        lambda g, x, m, r, w, b: aten.native_layer_norm_backward(
            g, x, [8], m, r, w, b, [True, True, True]
        ),
        torch.randn(2, 3, 8), x, mean, rstd, w, b,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("eps", [None, 1e-5])
def test_rms_norm_equals_eager(lowers, dtype, eps):
    lowers(
        lambda x, w: F.rms_norm(x, (8,), w, eps),
        torch.randn(2, 3, 8).to(dtype), torch.randn(8).to(dtype), whole=True,
    )  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_equals_eager(lowers, groups, affine):
    w, b = torch.randn(8), torch.randn(8)
    lowers(
        lambda x, w, b: F.group_norm(x, groups, *((w, b) if affine else ())) + b.sum(),
        torch.randn(2, 8, 4, 4), w, b,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batch_norm_of_inference_equals_eager(lowers, dtype):
    lowers(
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        torch.randn(2, 6, 4, 4).to(dtype), torch.randn(6).to(dtype), torch.rand(6).to(dtype) + 0.5,
        torch.randn(6).to(dtype), torch.randn(6).to(dtype),
    )  # fmt: skip


def test_batch_norm_after_a_convolution_equals_eager(lowers):
    convolved = {
        "bias": lambda x, c, b, m, v: F.batch_norm(F.conv2d(x, c, b), m, v, b, m),
        "sum": lambda x, c, b, m, v: F.batch_norm(F.conv2d(x, c) + F.conv2d(x, -c, b), m, v),
        "number": lambda x, c, b, m, v: F.batch_norm(F.conv2d(x, c) + 2.0, m, v),
    }
    lowers(
        convolved,
        torch.randn(2, 3, 8, 8), torch.randn(6, 3, 3, 3), torch.randn(6), torch.randn(6),
        torch.rand(6) + 0.5, whole=True,
    )  # fmt: skip


def test_dropout_of_inference_is_the_identity(lowers):
    lowers(lambda x: F.dropout(x, 0.5, training=False) + 1, torch.randn(3, 4), whole=True)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm_equals_eager(lowers, dim):
    v = torch.randn(3, 4, 5)
    g = torch.rand([size if axis == dim else 1 for axis, size in enumerate(v.shape)])
    lowers(lambda v, g: aten._weight_norm_interface(v, g, dim), v, g)


def test_group_norm_beside_a_comparison_does_not_end_the_process(lowers):
    def function(x):
        seen = x <= 0
        return torch.where(seen, F.group_norm(x, 1, eps=0.1), seen.to(x.dtype))

    lowers(function, torch.randn(2, 3, 4))
