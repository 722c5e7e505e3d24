"""Convolutions, plain, grouped and transposed, and interpolation.

Pooling is in pooling.py, gradients are in convolution_gradients.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import converter

__all__ = ["grouped_kernel", "spread"]

aten = torch.ops.aten


def spread(values: Any, count: int) -> list[int]:
    """One number per spatial axis, where one may stand for all."""
    listed = [values] if isinstance(values, int) else list(values)
    return [int(value) for value in (listed * count if len(listed) == 1 else listed)]


@converter(aten.convolution.default)
def convert_convolution(
    ctx: Context,
    input_: fx.Node,
    weight: fx.Node,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
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


@converter(
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    rule=lambda node, padding, **_: "padding given by name" if isinstance(padding, str) else None,
)
def convert_conv(
    ctx: Context,
    input_: fx.Node,
    weight: fx.Node,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Any:
    return convert_convolution(
        ctx, input_, weight, bias, stride, padding, dilation, False, [0], groups
    )


def grouped_kernel(ctx: Context, weight: fx.Node, groups: int) -> ov.Output:
    """OpenVINO wants groups as an axis of their own in front.

    Its CPU plugin (2026.4.1) compiles no model with a kernel whose sizes vary.
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


@converter(aten.upsample_nearest2d.vec, aten.upsample_nearest1d.vec, aten.upsample_nearest3d.vec)
def convert_nearest_vec(ctx: Context, input_: fx.Node, **given: Any) -> Any:
    return _interpolate(ctx, input_, "nearest", given, align_corners=False)


@converter(aten.upsample_nearest2d.default, aten.upsample_nearest1d.default)
def convert_nearest(ctx: Context, self: fx.Node, **given: Any) -> Any:
    return _interpolate(ctx, self, "nearest", given, align_corners=False)


@converter(aten.upsample_bilinear2d.vec)
def convert_bilinear_vec(ctx: Context, input_: fx.Node, align_corners: bool, **given: Any) -> Any:
    return _interpolate(ctx, input_, "linear_onnx", given, align_corners=align_corners)


@converter(aten.upsample_bilinear2d.default)
def convert_bilinear(ctx: Context, self: fx.Node, align_corners: bool, **given: Any) -> Any:
    return _interpolate(ctx, self, "linear_onnx", given, align_corners=align_corners)


def _interpolate(
    ctx: Context, input_: fx.Node, mode: str, given: dict[str, Any], *, align_corners: bool
) -> Any:
    spatial = ctx.rank(input_) - 2
    before = ctx.sizes(input_)[2:]
    sizes: Sequence[int | None] = ctx.sizes(ctx.node)[2:]
    if any(size is None for size in (*before, *sizes)):
        target = _named_size(ctx, given)
    else:
        target = ctx.integers([size for size in sizes if size is not None])
    if not align_corners and not _are_exact(_scales(given), before, sizes):
        ctx.refuse("a scale that is not the ratio of the sizes, by which torch finds the pixels")
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
    """The size that a call names, as a vector; other calls give scales, by which it varies."""
    if given.get("output_size") is None or any(scale is not None for scale in _scales(given)):
        ctx.refuse("interpolation by a scale to a symbolic size")
    return ctx.vector(given["output_size"])


def _scales(given: dict[str, Any]) -> list[float | None]:
    """The scales of a call, one for each axis; empty when it names a size alone."""
    if given.get("scale_factors") is not None:
        return list(given["scale_factors"])
    names = ("scales_d", "scales_h", "scales_w", "scales")
    return [given[name] for name in names if name in given]


def _are_exact(
    scales: Sequence[float | None], before: Sequence[int | None], after: Sequence[int | None]
) -> bool:
    """Whether each scale that is given is the ratio of the sizes; for then either may be used."""
    if not any(scale is not None for scale in scales):
        return True
    return all(
        scale is None or (old is not None and new is not None and scale * old == new)
        for scale, old, new in zip(scales, before, after, strict=True)
    )
