"""Gradients of convolutions against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler import CompilerConfig
from npu_compiler.lowering.capability import refusal

aten = torch.ops.aten


def gradient(mask, *, stride=1, padding=0, dilation=1, groups=1, transposed=False, extra=0):
    """A function of (gradient, input, weight) that gives the gradients of a mask."""

    def call(g, x, w):
        spatial = w.dim() - 2
        spread = [[value] * spatial for value in (stride, padding, dilation)]
        filters = w.shape[1] * groups if transposed else w.shape[0]
        result = aten.convolution_backward(
            g, x, w, [filters], *spread, transposed, [extra] * spatial, groups, list(mask)
        )
        # torch may compute more than it was asked for.
        return [part for part, is_asked in zip(result, mask, strict=True) if is_asked]

    return call


def tensors(channels, filters, sizes, window, **arguments):
    groups, is_transposed = arguments.get("groups", 1), arguments.get("transposed", False)
    first, second = (channels, filters) if is_transposed else (filters, channels)
    w = torch.randn(first, second // groups, *window)
    x = torch.randn(2, channels, *sizes)
    given = {key: arguments[key] for key in ("stride", "padding", "dilation", "groups")
             if key in arguments}  # fmt: skip
    names = ("conv_transpose1d", "conv_transpose2d") if is_transposed else (
        "conv1d", "conv2d", "conv3d")  # fmt: skip
    if "extra" in arguments:
        given["output_padding"] = arguments["extra"]
    y = getattr(F, names[len(sizes) - 1])(x, w, **given)
    return torch.randn_like(y), x, w


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"stride": 2},
        {"stride": 2, "padding": 1},
        {"dilation": 2, "padding": 2},
        {"groups": 2, "stride": 2},
        {"groups": 4, "padding": 1},
        {"transposed": True, "stride": 2},
        {"transposed": True, "stride": 2, "padding": 1, "extra": 1},
        {"transposed": True, "groups": 2},
    ],
    ids=str,
)
def test_gradient_of_the_input_equals_eager(lowers, arguments):
    lowers(
        gradient((True, False, True), **arguments),
        *tensors(4, 8, (10, 9), (3, 3), **arguments),
        tolerance=1e-5,
    )


def test_gradient_of_the_input_in_one_and_three_dimensions_equals_eager(lowers):
    for sizes, window in (((9,), (3,)), ((5, 6, 7), (3, 2, 1))):
        given = tensors(2, 3, sizes, window)
        lowers(gradient((True, False, False)), *given, tolerance=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [9, 2], ids=["more places", "more channels"])
def test_gradients_of_a_kernel_of_one_place_equal_eager(lowers, size, stride):
    given = tensors(32, 48, (size, size), (1, 1), stride=stride)
    lowers(gradient((True, True, True), stride=stride), *given, tolerance=1e-5)


def test_gradient_of_a_wide_kernel_is_the_hosts_with_a_reason():
    function = gradient((False, True, False))
    graph = make_fx(function, tracing_mode="fake")(*tensors(4, 8, (9, 9), (3, 3))).graph
    node = next(node for node in graph.nodes if node.target is aten.convolution_backward.default)
    assert "the host's kernel" in (refusal(node, CompilerConfig()) or "")
