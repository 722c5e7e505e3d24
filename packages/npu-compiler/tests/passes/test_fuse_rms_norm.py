"""Root mean square norms written out."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.passes.fuse_rms_norm import FuseRmsNorm

PASS = FuseRmsNorm()


def llama(x, weight):
    wide = x.float()
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * normal.to(x.dtype)


def gemma(x, weight):
    wide = x.float()
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return (normal * weight.float()).to(x.dtype)


@pytest.mark.parametrize("form", [llama, gemma])
def test_norm_becomes_one_call(rewrites, form):
    done = rewrites(form, torch.randn(2, 3, 8), torch.randn(8), passes=PASS)
    assert done.ops == ["npu.rms_norm.default"]


def test_half_precision_norm_reads_what_was_widened(rewrites):
    inputs = torch.randn(2, 8).bfloat16(), torch.ones(8).bfloat16()
    assert rewrites(llama, *inputs, passes=PASS).ops == ["npu.rms_norm.default"]


def test_weight_may_be_wider_than_the_result(rewrites):
    def gemma3(x, weight):
        wide = x.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (normal * (1.0 + weight.float())).to(x.dtype)

    inputs = torch.randn(2, 8).bfloat16(), torch.ones(8).bfloat16()
    assert "npu.rms_norm.default" in rewrites(gemma3, *inputs, passes=PASS).ops


def test_mean_over_another_axis_stays(rewrites):
    function = lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(0, True) + 1e-5))  # noqa: E731
    assert rewrites(function, torch.randn(3, 8), torch.randn(8), passes=PASS).count == 0


def test_another_power_stays(rewrites):
    function = lambda x, w: w * (x * torch.rsqrt(x.pow(4).mean(-1, True) + 1e-5))  # noqa: E731
    assert rewrites(function, torch.randn(3, 8), torch.randn(8), passes=PASS).count == 0


def test_weight_per_row_stays(rewrites):
    function = lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-5))  # noqa: E731
    assert rewrites(function, torch.randn(3, 8), torch.randn(3, 1), passes=PASS).count == 0


def test_mean_that_is_read_elsewhere_stays(rewrites):
    def function(x, weight):
        mean = x.pow(2).mean(-1, keepdim=True)
        return weight * (x * torch.rsqrt(mean + 1e-5)), mean

    assert rewrites(function, torch.randn(3, 8), torch.randn(8), passes=PASS).count == 0
