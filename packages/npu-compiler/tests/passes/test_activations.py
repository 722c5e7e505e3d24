"""Gelu written out."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.passes.activations import (
    FoldBatchNorm,
    FuseConvBnRelu,
    FuseGelu,
    FuseRmsNorm,
    FuseRotaryEmbedding,
)
from npu_compiler.passes.infra.pass_base import Facts

PASS = FuseGelu()

FORMS = {
    "tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "tanh with products": lambda x: (
        0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * (x * x * x))))
    ),
    "erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "erf, half last": lambda x: x * (1.0 + torch.erf(x * math.sqrt(0.5))) * 0.5,
    "erf, halved": lambda x: x / 2 * (1.0 + torch.erf(x / math.sqrt(2.0))),
}


@pytest.mark.parametrize("form", FORMS)
def test_form_becomes_one_call(rewrites, form):
    assert rewrites(FORMS[form], torch.randn(3, 4), passes=PASS).ops == ["aten.gelu.default"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 0.4 * x * (1 + torch.erf(x / math.sqrt(2.0))),
        lambda x: 0.5 * x * (2 + torch.erf(x / math.sqrt(2.0))),
        lambda x: 0.5 * x * (1 + torch.erf(x / 1.5)),
        lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**2))),
    ],
    ids=["half", "one", "root", "exponent"],
)
def test_other_numbers_stay(rewrites, function):
    assert rewrites(function, torch.randn(3, 4), passes=PASS).count == 0


def test_of_two_tensors_stays(rewrites):
    function = lambda x, y: 0.5 * y * (1 + torch.erf(x / math.sqrt(2.0)))  # noqa: E731
    assert rewrites(function, torch.randn(3), torch.randn(3), passes=PASS).count == 0


PASS_FUSE_RMS_NORM = FuseRmsNorm()


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
    done = rewrites(form, torch.randn(2, 3, 8), torch.randn(8), passes=PASS_FUSE_RMS_NORM)
    assert done.ops == ["npu.rms_norm.default"]


def test_half_precision_norm_reads_what_was_widened(rewrites):
    inputs = torch.randn(2, 8).bfloat16(), torch.ones(8).bfloat16()
    assert rewrites(llama, *inputs, passes=PASS_FUSE_RMS_NORM).ops == ["npu.rms_norm.default"]


def test_weight_may_be_wider_than_the_result(rewrites):
    def gemma3(x, weight):
        wide = x.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (normal * (1.0 + weight.float())).to(x.dtype)

    inputs = torch.randn(2, 8).bfloat16(), torch.ones(8).bfloat16()
    assert "npu.rms_norm.default" in rewrites(gemma3, *inputs, passes=PASS_FUSE_RMS_NORM).ops


def test_mean_over_another_axis_stays(rewrites):
    function = lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(0, True) + 1e-5))  # noqa: E731
    assert (
        rewrites(function, torch.randn(3, 8), torch.randn(8), passes=PASS_FUSE_RMS_NORM).count == 0
    )


def test_another_power_stays(rewrites):
    function = lambda x, w: w * (x * torch.rsqrt(x.pow(4).mean(-1, True) + 1e-5))  # noqa: E731
    assert (
        rewrites(function, torch.randn(3, 8), torch.randn(8), passes=PASS_FUSE_RMS_NORM).count == 0
    )


def test_weight_per_row_stays(rewrites):
    function = lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-5))  # noqa: E731
    assert (
        rewrites(function, torch.randn(3, 8), torch.randn(3, 1), passes=PASS_FUSE_RMS_NORM).count
        == 0
    )


def test_mean_that_is_read_elsewhere_stays(rewrites):
    def function(x, weight):
        mean = x.pow(2).mean(-1, keepdim=True)
        return weight * (x * torch.rsqrt(mean + 1e-5)), mean

    assert (
        rewrites(function, torch.randn(3, 8), torch.randn(8), passes=PASS_FUSE_RMS_NORM).count == 0
    )


PASS_FUSE_CONV_BN_RELU = FuseConvBnRelu()
INPUTS = (
    torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4), torch.rand(4) + 1,
    torch.randn(4), torch.randn(4),
)  # fmt: skip


def block(x, weight, mean, variance, scale, shift):
    y = F.conv2d(x, weight, stride=2, padding=1)
    normal = torch._native_batch_norm_legit_no_training(y, scale, shift, mean, variance, 0.1, 1e-5)
    return normal[0].relu()


def test_block_becomes_one_call(rewrites):
    assert rewrites(block, *INPUTS, passes=PASS_FUSE_CONV_BN_RELU).ops == [
        "npu.conv_bn_relu.default"
    ]


def cast_block(x, weight, bias, mean, variance, scale, shift):
    y = F.conv2d(x.bfloat16(), weight.bfloat16(), bias.bfloat16(), groups=3)
    return torch._native_batch_norm_legit_no_training(y, scale, shift, mean, variance, 0.1, 1e-5)[0]


def test_batch_norm_is_folded_before_weights_are_rounded():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16)).eval()
    torch.nn.init.normal_(model[1].running_mean, 8, 1)
    torch.nn.init.uniform_(model[1].running_var, 0.01, 0.1)
    torch.nn.init.constant_(model[0].bias, 8)
    x = torch.rand(4, 3, 16, 16)
    with torch.no_grad():
        exact = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            expected = (model(x) - exact).norm()
            assert (torch.compile(model, backend="npu")(x) - exact).norm() <= expected


def test_folded_convolution_has_groups_and_needs_constants():
    inputs = (
        torch.randn(2, 3, 8, 8), torch.randn(6, 1, 3, 3), torch.randn(6), torch.randn(6),
        torch.rand(6) + 1, torch.randn(6), torch.randn(6),
    )  # fmt: skip
    module = make_fx(cast_block, tracing_mode="fake")(*inputs)
    module.graph.eliminate_dead_code()
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    assert FoldBatchNorm().run(module.graph, Facts("inference", frozenset(names[1:3]))).count == 0
    assert FoldBatchNorm().run(module.graph, Facts("inference", frozenset(names[1:]))).count == 1
    module.recompile()
    norm = torch.ops.aten._native_batch_norm_legit_no_training.default
    assert not module.graph.find_nodes(op="call_function", target=norm)
    x, weight, bias, *parts = inputs
    mean, variance, scale, shift = parts
    exact = F.batch_norm(F.conv2d(x, weight, bias, groups=3), mean, variance, scale, shift)
    assert (module(*inputs) - exact).norm() <= 1.1 * (cast_block(*inputs) - exact).norm()


def test_training_keeps_the_parts(rewrites):
    assert rewrites(block, *INPUTS, passes=PASS_FUSE_CONV_BN_RELU, kind="forward").count == 0


def test_norm_that_is_read_elsewhere_stays(rewrites):
    def function(x, weight, mean, variance, scale, shift):
        y = F.conv2d(x, weight)
        normal = torch._native_batch_norm_legit_no_training(
            y, scale, shift, mean, variance, 0.1, 1e-5
        )
        return normal[0].relu() + y

    assert rewrites(function, *INPUTS, passes=PASS_FUSE_CONV_BN_RELU).count == 0


def test_transposed_convolution_stays(rewrites):
    def function(x, weight, mean, variance, scale, shift):
        y = F.conv_transpose2d(x, weight.transpose(0, 1))
        normal = torch._native_batch_norm_legit_no_training(
            y, scale, shift, mean, variance, 0.1, 1e-5
        )
        return normal[0].relu()

    assert rewrites(function, *INPUTS, passes=PASS_FUSE_CONV_BN_RELU).count == 0


PASS_FUSE_ROTARY_EMBEDDING = FuseRotaryEmbedding()
X, ANGLES = torch.randn(2, 4, 6, 8), torch.randn(2, 6, 4)


def turned(x):
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


def rotary(x, angles):
    table = torch.cat([angles, angles], -1)
    return x * table.cos().unsqueeze(1) + turned(x) * table.sin().unsqueeze(1)


def test_embedding_becomes_one_call(rewrites):
    done = rewrites(rotary, X, ANGLES, passes=PASS_FUSE_ROTARY_EMBEDDING)
    assert done.count == 1
    assert "npu.rotary_embedding.default" in done.ops
    assert "aten.neg.default" not in done.ops


def test_tables_whose_halves_may_differ_stay(rewrites):
    def function(x, table):
        return x * table.cos().unsqueeze(1) + turned(x) * table.sin().unsqueeze(1)

    assert rewrites(function, X, torch.randn(2, 6, 8), passes=PASS_FUSE_ROTARY_EMBEDDING).count == 0


def test_turn_by_another_width_stays(rewrites):
    def function(x, angles):
        table = torch.cat([angles, angles], -1)
        other = torch.cat([-x[..., 2:], x[..., :2]], -1)
        return x * table.cos().unsqueeze(1) + other * table.sin().unsqueeze(1)

    assert rewrites(function, X, ANGLES, passes=PASS_FUSE_ROTARY_EMBEDDING).count == 0


def test_product_that_is_read_elsewhere_stays(rewrites):
    def function(x, angles):
        table = torch.cat([angles, angles], -1)
        first = x * table.cos().unsqueeze(1)
        return first + turned(x) * table.sin().unsqueeze(1), first

    assert rewrites(function, X, ANGLES, passes=PASS_FUSE_ROTARY_EMBEDDING).count == 0
