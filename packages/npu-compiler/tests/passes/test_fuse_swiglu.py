"""Gated layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from npu_compiler.passes.fuse_swiglu import FuseSwiglu

PASS = FuseSwiglu()


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
    done = rewrites(function, torch.randn(2, 8), torch.randn(2, 8), passes=PASS)
    assert done.ops == ["npu.swiglu.default"]


def test_gate_that_is_read_elsewhere_stays(rewrites):
    function = lambda g, u: (s := F.silu(g), s * u)  # noqa: E731
    assert rewrites(function, torch.randn(2, 8), torch.randn(2, 8), passes=PASS).count == 0


def test_broadcast_stays(rewrites):
    function = lambda g, u: F.silu(g) * u  # noqa: E731
    assert rewrites(function, torch.randn(2, 8), torch.randn(1, 8), passes=PASS).count == 0


def test_product_with_a_number_stays(rewrites):
    assert rewrites(lambda g: F.silu(g) * 2.0, torch.randn(2, 8), passes=PASS).count == 0
