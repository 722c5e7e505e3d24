"""Convolutions and interpolation against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler import CompilerConfig
from npu_compiler.lowering.capability import refusal

FLOATS = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_conv2d_equals_eager(lowers, layout, dtype):
    forms = [
        {},
        {"stride": 2, "padding": 1},
        {"dilation": 2, "padding": (2, 1)},
        {"groups": 2},
        {"groups": 4, "padding": 1},
    ]

    def convolve(form):
        place = {1: 0, 2: 1, 4: 2}[form.get("groups", 1)]
        return lambda x, b, *weights: F.conv2d(x, weights[place], b, **form)

    x = torch.randn(2, 4, 9, 8).to(dtype).to(memory_format=layout)
    weights = [torch.randn(8, width, 3, 3).to(dtype) for width in (4, 2, 1)]
    convolutions = {str(form): convolve(form) for form in forms}
    lowers(convolutions, x, torch.randn(8).to(dtype), *weights)


def test_conv_without_bias_and_whole_equals_eager(lowers):
    lowers(
        lambda x, w: F.conv2d(x, w), torch.randn(2, 4, 9, 8), torch.randn(8, 4, 3, 3), whole=True
    )


def test_conv_by_a_kernel_whose_sizes_vary_is_the_only_call_that_runs_eagerly(
    compiled, close, on_npu
):
    def function(x, w):
        return F.conv2d(x @ x, w).tanh()

    run = compiled(function, dynamic=True, options={"target": "openvino"})
    with torch.no_grad():
        for count in (6, 5):
            x, w = torch.randn(1, 4, 9, 9), torch.randn(count, 4, 3, 3)
            close(run(x, w), function(x, w))
    # In an NPU's programs, one for each count, no size varies.
    left = [] if on_npu else ["aten.convolution.default"]
    assert (run.eager_ops, run.programs) == (left, 2)


def test_conv1d_and_conv3d_equal_eager(lowers):
    lowers(lambda x, w: F.conv1d(x, w, padding=1), torch.randn(2, 4, 9), torch.randn(6, 4, 3))
    lowers(lambda x, w: F.conv3d(x, w), torch.randn(1, 2, 5, 5, 5), torch.randn(4, 2, 3, 3, 3))


@pytest.mark.parametrize(
    "arguments",
    [{}, {"stride": 2}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2}],
    ids=str,
)
def test_transposed_conv_equals_eager(lowers, arguments):
    groups = arguments.get("groups", 1)
    lowers(
        lambda x, w, b: F.conv_transpose2d(x, w, b, **arguments),
        torch.randn(2, 4, 5, 6), torch.randn(4, 6 // groups, 3, 3), torch.randn(6),
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        {"scale_factor": 2, "mode": "nearest"},
        {"size": (7, 5), "mode": "nearest"},
        {"scale_factor": 2, "mode": "bilinear"},
        {"size": (9, 5), "mode": "bilinear", "align_corners": True},
        {"size": (3, 2), "mode": "bilinear", "align_corners": False},
    ],
    ids=str,
)
def test_interpolation_equals_eager(lowers, arguments):
    lowers(lambda x: F.interpolate(x, **arguments), torch.randn(2, 3, 5, 4))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_interpolation_to_the_size_of_another_tensor(lowers, mode):
    # As DETR reduces masks of images to the size of its backbone's output.
    lowers(
        lambda x, like: F.interpolate(x, size=like.shape[-2:], mode=mode),
        torch.randn(2, 3, 9, 14), torch.randn(2, 3, 4, 7),
        dynamic=True, run_on=(torch.randn(1, 3, 11, 25), torch.randn(1, 3, 5, 8)),
    )  # fmt: skip


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
