"""Converters of convolutions and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.graph.nodes import axis_order
from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import converter

__all__ = ["grouped_kernel", "spread"]

aten = torch.ops.aten


def spread(values: Any, count: int) -> list[int]:
    """Returns one number per spatial axis; a single number is repeated."""
    listed = [values] if isinstance(values, int) else list(values)
    return [int(value) for value in (listed * count if len(listed) == 1 else listed)]


@converter(
    aten.convolution.default,
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    rule=lambda node, padding, **_: "padding given by name" if isinstance(padding, str) else None,
)
def convert_convolution(
    ctx: Context,
    input_: fx.Node,
    weight: fx.Node,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool = False,
    output_padding: Any = 0,
    groups: int = 1,
) -> Any:
    spatial = ctx.rank(weight) - 2
    if ctx.rank(input_) != spatial + 2:
        ctx.refuse("an input without a batch")
    strides, dilations = spread(stride, spatial), spread(dilation, spatial)
    pads = spread(padding, spatial)
    kernel = grouped_kernel(ctx, weight, groups)
    value = ctx.get(input_)
    if transposed:
        extra = spread(output_padding, spatial)
        make = ops.group_convolution_backprop_data if groups > 1 else ops.convolution_backprop_data
        result = make(
            value,
            kernel,
            strides,
            pads_begin=pads,
            pads_end=pads,
            dilations=dilations,
            output_padding=extra,
        )
    else:
        forward = ops.group_convolution if groups > 1 else ops.convolution
        result = forward(value, kernel, strides, pads, pads, dilations)
    return _with_bias(ctx, result.output(0), bias, spatial)


def grouped_kernel(ctx: Context, weight: fx.Node, groups: int) -> ov.Output:
    """Moves groups to a separate leading axis, as OpenVINO requires.

    Refuses kernels of dynamic size, which OpenVINO's CPU plugin (2026.4.1) cannot compile.
    """
    sizes = ctx.sizes(weight)
    if any(size is None for size in sizes):
        ctx.refuse("a kernel of symbolic size")
    kernel = ctx.get(weight)
    if groups == 1:
        return kernel
    first, second, *window = (size for size in sizes if size is not None)
    shape = [groups, first // groups, second, *window]
    return ctx.reshape(kernel, shape)


def _with_bias(ctx: Context, value: ov.Output, bias: Any, spatial: int) -> Any:
    if bias is None:
        return value
    channels = ctx.reshape(ctx.get(bias), [1, -1, *([1] * spatial)])
    return ops.add(value, channels)


@converter(
    aten.upsample_nearest1d.default,
    aten.upsample_nearest1d.vec,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest2d.vec,
    aten.upsample_nearest3d.vec,
    aten.upsample_bilinear2d.default,
    aten.upsample_bilinear2d.vec,
)
def convert_interpolation(ctx: Context, **given: Any) -> Any:
    input_ = given["input_" if "input_" in given else "self"]
    mode = "nearest" if "nearest" in str(ctx.node.target) else "linear_onnx"
    align_corners = given.get("align_corners", False)
    spatial = ctx.rank(input_) - 2
    before = ctx.sizes(input_)[2:]
    sizes: Sequence[int | None] = ctx.sizes(ctx.node)[2:]
    if any(size is None for size in (*before, *sizes)):
        target = _named_size(ctx, given)
    else:
        target = ctx.integers([size for size in sizes if size is not None])
    if not align_corners and not _are_exact(_scales(given), before, sizes):
        ctx.refuse("a scale that differs from the ratio of the sizes")
    if mode == "nearest":
        corners = "asymmetric"
    else:
        corners = "align_corners" if align_corners else "half_pixel"
    return ops.interpolate(
        ctx.get(input_),
        target,
        mode,
        "sizes",
        coordinate_transformation_mode=corners,
        nearest_mode="floor",
        axes=ctx.integers(list(range(2, 2 + spatial))),
    )


def _named_size(ctx: Context, given: dict[str, Any]) -> ov.Output:
    """Returns the output size given by a call, as a vector; None if it gives scales."""
    if given.get("output_size") is None or any(scale is not None for scale in _scales(given)):
        ctx.refuse("interpolation by a scale to a symbolic size")
    return ctx.vector(given["output_size"])


def _scales(given: dict[str, Any]) -> list[float | None]:
    """Returns a call's scales, one per axis; empty if it gives only a size."""
    if given.get("scale_factors") is not None:
        return list(given["scale_factors"])
    names = ("scales_d", "scales_h", "scales_w", "scales")
    return [given[name] for name in names if name in given]


def _are_exact(
    scales: Sequence[float | None], before: Sequence[int | None], after: Sequence[int | None]
) -> bool:
    """Whether each scale equals the ratio of the sizes, so that either may be used."""
    if not any(scale is not None for scale in scales):
        return True
    return all(
        scale is None or (old is not None and new is not None and scale * old == new)
        for scale, old, new in zip(scales, before, after, strict=True)
    )


# The formulas are in npu_compiler.passes.decompose (Dumoulin and Visin, 2016, section 4). Weight
# gradients of kernels larger than 1 run on the host: as a convolution with batch and channels
# exchanged, they took 1.3 to 3.9 times the time of the host's kernel. Those of kernels of size 1
# are a matrix product, which took half of it (shapes of ResNet-50, one thread, November 2026).


@dataclass(frozen=True)
class _Windows:
    """Window geometry of a convolution: one number per spatial axis, and the groups."""

    strides: list[int]
    pads: list[int]
    dilations: list[int]
    groups: int


def _rule(node: fx.Node, **given: Any) -> str | None:
    tensors = [given[name].meta["val"] for name in ("grad_output", "input_", "weight")]
    if any(not isinstance(size, int) for tensor in tensors for size in tuple(tensor.shape)):
        return "the gradient of a convolution of symbolic sizes"
    if tensors[0].dim() != tensors[2].dim():
        return "an input without a batch"
    if given["output_mask"][1] and not _is_product(tensors[2], **given):
        return "the host's kernel for the weight's gradient is faster than a program's convolution"
    return None


def _is_product(
    kernel: torch.Tensor, padding: Any, transposed: bool, groups: int, **_: Any
) -> bool:
    """Whether the weight gradient is one matrix product of the gradient and the input."""
    is_place = all(size == 1 for size in tuple(kernel.shape)[2:])
    return is_place and not any(padding) and not transposed and groups == 1


@converter(aten.convolution_backward.default, rule=_rule)
def convert_convolution_backward(
    ctx: Context,
    grad_output: fx.Node,
    input_: fx.Node,
    weight: fx.Node,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    spatial = ctx.rank(weight) - 2
    strides, pads, dilations = (spread(v, spatial) for v in (stride, padding, dilation))
    windows = _Windows(strides, pads, dilations, groups)
    gradients: list[Any] = [None, None, None]
    if output_mask[0] and transposed:
        gradients[0] = _of_transposed_input(ctx, grad_output, input_, weight, windows)
    elif output_mask[0]:
        gradients[0] = _of_input(ctx, grad_output, input_, weight, windows)
    if output_mask[1]:
        gradients[1] = _of_weight(ctx, grad_output, input_, weight, strides)
    if output_mask[2]:
        axes = ctx.integers([0, *range(2, spatial + 2)])
        gradients[2] = ops.reduce_sum(ctx.get(grad_output), axes, False).output(0)
    return tuple(gradients)


def _of_input(
    ctx: Context, grad_output: fx.Node, input_: fx.Node, weight: fx.Node, windows: _Windows
) -> ov.Output:
    """Returns the input gradient, a transposed convolution; positions outside all windows get 0."""
    rests = [
        size - ((out - 1) * step - 2 * pad + gap * (window - 1) + 1)
        for size, out, step, pad, gap, window in zip(
            _known(ctx, input_)[2:],
            _known(ctx, grad_output)[2:],
            windows.strides,
            windows.pads,
            windows.dilations,
            _known(ctx, weight)[2:],
            strict=True,
        )
    ]
    is_grouped = windows.groups > 1
    make = ops.group_convolution_backprop_data if is_grouped else ops.convolution_backprop_data
    result = make(
        ctx.get(grad_output),
        grouped_kernel(ctx, weight, windows.groups),
        windows.strides,
        pads_begin=windows.pads,
        pads_end=windows.pads,
        dilations=windows.dilations,
        output_padding=rests,
    )
    return result.output(0)


def _of_transposed_input(
    ctx: Context, grad_output: fx.Node, input_: fx.Node, weight: fx.Node, windows: _Windows
) -> ov.Output:
    kernel = grouped_kernel(ctx, weight, windows.groups)
    make = ops.group_convolution if windows.groups > 1 else ops.convolution
    result = make(
        ctx.get(grad_output),
        kernel,
        windows.strides,
        windows.pads,
        windows.pads,
        windows.dilations,
    ).output(0)
    # A large output padding adds windows without an input position.
    sizes = _known(ctx, input_)
    if list(result.get_shape()) == sizes:
        return result
    return _cut(ctx, result, sizes[2:], [1] * (len(sizes) - 2))


def _of_weight(
    ctx: Context, grad_output: fx.Node, input_: fx.Node, weight: fx.Node, strides: list[int]
) -> ov.Output:
    """Returns the gradient of a kernel of size 1: gradient times input, summed."""
    batch, channels, *sizes = _known(ctx, input_)
    filters, places = _known(ctx, grad_output)[1], _known(ctx, grad_output)[2:]
    value = ctx.get(input_)
    if any(step > 1 for step in strides):
        value = _cut(ctx, value, sizes, strides)
    count = math.prod(places)
    if axis_order(ctx.meta(grad_output)) == (0, 2, 3, 1):
        rows = [
            ctx.reshape(ctx.transpose(one, [0, 2, 3, 1]), [batch * count, width])
            for one, width in ((ctx.get(grad_output), filters), (value, channels))
        ]
        total = ops.matmul(*rows, True, False).output(0)
        return ctx.reshape(total, _known(ctx, weight))
    left = ctx.reshape(ctx.get(grad_output), [batch, filters, count])
    right = ctx.reshape(value, [batch, channels, count])
    if filters * channels > 2 * (filters + channels) * count:
        # A product per image would write more than exchanging batch and channels.
        left = ctx.reshape(ctx.transpose(left, [1, 0, 2]), [filters, batch * count])
        right = ctx.reshape(ctx.transpose(right, [1, 0, 2]), [channels, batch * count])
        total = ops.matmul(left, right, False, True).output(0)
    else:
        each = ops.matmul(left, right, False, True)
        total = ops.reduce_sum(each, ctx.integers([0]), False).output(0)
    return ctx.reshape(total, _known(ctx, weight))


def _cut(ctx: Context, value: ov.Output, ends: list[int], steps: list[int]) -> ov.Output:
    """Slices the spatial axes with steps, from 0 to exclusive ends."""
    count = len(ends)
    return ops.slice(
        value,
        ctx.integers([0] * count),
        ctx.integers(ends),
        ctx.integers(steps),
        ctx.integers(list(range(2, 2 + count))),
    ).output(0)


def _known(ctx: Context, node: fx.Node) -> list[int]:
    """Returns sizes as integers; the rule has checked that they are static."""
    return [size for size in ctx.sizes(node) if size is not None]
