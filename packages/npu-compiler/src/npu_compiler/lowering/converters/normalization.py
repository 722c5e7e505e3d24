"""Converters of layer, group, batch and RMS norms, and of dropout that is the identity."""

from __future__ import annotations

import math
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.graph.nodes import op_name
from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import converter

__all__ = ["batch_norm", "rms"]

aten = torch.ops.aten


def _scale_and_shift(
    ctx: Context, value: ov.Output, weight: Any, bias: Any, dtype: torch.dtype
) -> ov.Output:
    if weight is not None:
        value = ops.multiply(value, ctx.get(weight, dtype)).output(0)
    if bias is not None:
        value = ops.add(value, ctx.get(bias, dtype)).output(0)
    return value


def _inner_axes(ctx: Context, input_: fx.Node, normalized_shape: Any) -> ov.Output:
    rank = ctx.rank(input_)
    return ctx.integers(list(range(rank - len(normalized_shape), rank)))


@converter(aten.native_layer_norm.default, aten.layer_norm.default)
def convert_layer_norm(
    ctx: Context,
    input_: fx.Node,
    normalized_shape: Any,
    weight: Any,
    bias: Any,
    eps: float,
    **_: Any,
) -> Any:
    axes = _inner_axes(ctx, input_, normalized_shape)
    normal = ops.mvn(ctx.get(input_), axes, True, float(eps), "inside_sqrt").output(0)
    output = _scale_and_shift(ctx, normal, weight, bias, ctx.out_dtype(0))
    if ctx.node.target is aten.layer_norm.default:
        return output
    if not (ctx.is_read(1) or ctx.is_read(2)):
        return output, None, None
    _refuse_one_element(ctx, normalized_shape)
    work = ctx.get(input_, ctx.out_dtype(1))
    mean, rstd = _mean_and_rstd(ctx, work, axes, eps, ctx.out_dtype(1))
    return output, mean, rstd


def _refuse_one_element(ctx: Context, normalized_shape: Any) -> None:
    """Refuses norms of one element: sqrt(eps) would divide the rounding error of its mean."""
    if all(size == 1 for size in normalized_shape):
        ctx.refuse("the statistics of a norm over one element")


def _mean_and_rstd(
    ctx: Context, value: ov.Output, axes: ov.Output, eps: float, dtype: torch.dtype
) -> tuple[ov.Output, ov.Output]:
    mean = ops.reduce_mean(value, axes, True)
    centered = ops.subtract(value, mean)
    variance = ops.reduce_mean(ops.multiply(centered, centered), axes, True)
    deviation = ops.sqrt(ops.add(variance, ctx.number(eps, dtype)))
    return mean.output(0), ops.divide(ctx.number(1, dtype), deviation).output(0)


@converter(aten.native_layer_norm_backward.default)
def convert_layer_norm_backward(
    ctx: Context,
    grad_out: fx.Node,
    input_: fx.Node,
    normalized_shape: Any,
    mean: fx.Node,
    rstd: fx.Node,
    weight: Any,
    bias: Any,
    output_mask: Any,
) -> Any:
    """Lowers the gradients of layer norm (Ba, Kiros, Hinton, 2016), in float32."""
    _refuse_one_element(ctx, normalized_shape)
    work = torch.float32
    rank = ctx.rank(input_)
    split = rank - len(normalized_shape)
    inner = ctx.integers(list(range(split, rank)))
    outer = ctx.integers(list(range(split)))
    grad = ctx.get(grad_out, work)
    scale = ctx.get(rstd, work)
    normal = ops.multiply(ops.subtract(ctx.get(input_, work), ctx.get(mean, work)), scale)
    scaled = grad if weight is None else ops.multiply(grad, ctx.get(weight, work)).output(0)
    average = ops.reduce_mean(scaled, inner, True)
    projection = ops.reduce_mean(ops.multiply(scaled, normal), inner, True)
    inside = ops.subtract(ops.subtract(scaled, average), ops.multiply(normal, projection))
    grad_input = ctx.convert(ops.multiply(inside, scale).output(0), ctx.dtype(input_))
    grad_weight = grad_bias = None
    if output_mask[1]:
        total = grad_times = ops.multiply(grad, normal)
        if split:
            total = ops.reduce_sum(grad_times, outer, False)
        grad_weight = ctx.convert(total.output(0), ctx.dtype(weight))
    if output_mask[2]:
        summed = ops.reduce_sum(grad, outer, False).output(0) if split else grad
        grad_bias = ctx.convert(summed, ctx.dtype(bias))
    return grad_input, grad_weight, grad_bias


@converter(aten._fused_rms_norm.default)
def rms(ctx: Context, input_: fx.Node, normalized_shape: Any, weight: Any, eps: Any) -> Any:
    """Lowers an RMS norm in float32; returns it and the reciprocal root."""
    dtype = ctx.dtype(input_)
    work = torch.float32
    if eps is None:
        eps = torch.finfo(dtype).eps
    axes = _inner_axes(ctx, input_, normalized_shape)
    value = ctx.get(input_, work)
    mean = ops.reduce_mean(ops.multiply(value, value), axes, True)
    root = ops.sqrt(ops.add(mean, ctx.number(eps, work)))
    rstd = ops.divide(ctx.number(1, work), root).output(0)
    normal = ops.multiply(value, rstd).output(0)
    if weight is not None:
        normal = ops.multiply(normal, ctx.get(weight, work)).output(0)
    return ctx.convert(normal, dtype), rstd


@converter(aten.rms_norm.default)
def convert_rms_norm(
    ctx: Context, input_: fx.Node, normalized_shape: Any, weight: Any, eps: Any
) -> Any:
    return rms(ctx, input_, normalized_shape, weight, eps)[0]


@converter(aten.native_group_norm.default)
def convert_native_group_norm(
    ctx: Context, input_: fx.Node, weight: Any, bias: Any, group: int, eps: float, **_: Any
) -> Any:
    output = _group_norm(ctx, input_, group, weight, bias, eps)
    if not ctx.is_read(1) and not ctx.is_read(2):
        return output, None, None
    return output, *_group_statistics(ctx, input_, group, eps)


def _group_statistics(
    ctx: Context, input_: fx.Node, groups: int, eps: float
) -> tuple[ov.Output, ov.Output]:
    """Returns the mean and 1 / sqrt(variance) of each group: (batch, groups)."""
    work = torch.float32
    rows = ops.reshape(ctx.get(input_, work), ctx.integers([0, groups, -1]), True)
    axis = ctx.integers([2])
    mean = ops.reduce_mean(rows, axis, True).output(0)
    centred = ops.subtract(rows, mean)
    variance = ops.reduce_mean(ops.multiply(centred, centred), axis, False)
    spread = ops.sqrt(ops.add(variance, ctx.number(eps, work)))
    reciprocal = ops.divide(ctx.number(1.0, work), spread)
    return (
        ctx.convert(ctx.squeeze(mean, [2]), ctx.out_dtype(1)),
        ctx.convert(reciprocal.output(0), ctx.out_dtype(2)),
    )


@converter(aten.group_norm.default)
def convert_group_norm(
    ctx: Context, input_: fx.Node, num_groups: int, weight: Any, bias: Any, eps: float, **_: Any
) -> Any:
    return _group_norm(ctx, input_, num_groups, weight, bias, eps)


def _group_norm(
    ctx: Context, input_: fx.Node, groups: int, weight: Any, bias: Any, eps: float
) -> ov.Output:
    dtype = ctx.dtype(input_)
    channels = ctx.sizes(input_)[1]
    if channels is None:
        ctx.refuse("a symbolic number of channels")
    value = ctx.get(input_)
    # Not OpenVINO's GroupNormalization: next to a comparison, the CPU plugin crashes the process
    # when it compiles one (OpenVINO 2026.4.1). This form is as fast.
    rows = ops.reshape(value, ctx.integers([0, groups, -1]), True)
    normal = ops.mvn(rows, ctx.integers([2]), True, float(eps), "inside_sqrt")
    result = ops.reshape(normal, ops.shape_of(value), False).output(0)
    per_channel = [1, channels] + [1] * (ctx.rank(input_) - 2)
    if weight is not None:
        factor = ctx.reshape(ctx.get(weight, dtype), per_channel)
        result = ops.multiply(result, factor).output(0)
    if bias is not None:
        result = ops.add(result, ctx.reshape(ctx.get(bias, dtype), per_channel)).output(0)
    return result


def batch_norm(
    ctx: Context,
    value: ov.Output,
    channels: int | None,
    dtype: torch.dtype,
    parts: tuple[Any, Any, Any, Any],
    eps: float,
    *,
    name: str | None = None,
) -> ov.Output:
    """Lowers a batch norm; `parts` are weight and bias (or None), mean and variance.

    A plugin fuses the product with the convolution before it; the convolution's layer then has the
    product's name: `name`, or that of the call.

    Multiply and Add instead of BatchNormInference: a plugin splits that into nodes with names of
    its own, so that a layer of the fused convolution could not be traced to its module.
    """
    if channels is None:
        ctx.refuse("a symbolic number of channels")
    given = (
        torch.full((channels,), fill, dtype=dtype) if part is None else part
        for part, fill in zip(parts, (1, 0, 0, 1), strict=True)
    )
    work = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    weight, bias, mean, variance = (ctx.get(part, work) for part in given)
    scale = ops.divide(weight, ops.sqrt(ops.add(variance, ctx.number(float(eps), work))))
    shift = ops.subtract(bias, ops.multiply(mean, scale))
    axes = list(range(1, value.get_partial_shape().rank.get_length() - 1))
    factor, term = (
        ctx.unsqueeze(ctx.convert(one.output(0), dtype), axes) for one in (scale, shift)
    )
    if _is_biased_convolution(value):
        # A plugin would move the bias behind the product, with a new name.
        value, added = value.get_node().input_values()
        term = ops.add(ops.multiply(added, factor), term).output(0)
    product = ops.multiply(value, factor)
    if name is not None:
        product.set_friendly_name(name)
    return ops.add(product, term).output(0)


def _is_biased_convolution(value: ov.Output) -> bool:
    """Whether a value is a convolution plus a bias of shape (1, channels, 1, ...)."""
    if value.get_node().get_type_name() != "Add":
        return False
    product, added = value.get_node().input_values()
    if product.get_node().get_type_name() not in ("Convolution", "GroupConvolution"):
        return False
    sizes = added.get_partial_shape()
    return sizes.is_static and len(sizes) > 1 and math.prod(sizes.to_shape()) == sizes[1]


@converter(
    aten.batch_norm.default,
    aten.native_batch_norm.default,
    aten.cudnn_batch_norm.default,
    aten._native_batch_norm_legit_no_training.default,
    rule=lambda node, training=False, **_: (
        "statistics of the batch are gathered" if training else None
    ),
)
def convert_batch_norm(
    ctx: Context,
    input_: fx.Node,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    eps: float = 0.0,
    epsilon: float = 0.0,
    **_: Any,
) -> Any:
    parts = (weight, bias, running_mean, running_var)
    value, channels = ctx.get(input_), ctx.sizes(input_)[1]
    # Two ops.
    is_fused = input_.target is aten.convolution.default and len(input_.users) == 1
    name = f"{input_.name}/{op_name(input_.target)}" if is_fused else None
    output = batch_norm(ctx, value, channels, ctx.dtype(input_), parts, eps or epsilon, name=name)
    return output if ctx.node.target is aten.batch_norm.default else (output, None, None)


@converter(
    aten.dropout.default,
    rule=lambda node, p, train, **_: "dropout draws random numbers" if train and p else None,
    compute=False,
)
def convert_dropout(ctx: Context, input_: fx.Node, **_: Any) -> Any:
    return ctx.get(input_)


@converter(aten._weight_norm_interface.default)
def convert_weight_norm(ctx: Context, v: fx.Node, g: fx.Node, dim: int) -> Any:
    """Returns v scaled to length g per slice along dim, and the lengths of v."""
    own = ctx.axis(v, dim)
    others = [axis for axis in range(ctx.rank(v)) if axis != own]
    value = ctx.get(v)
    lengths = ops.reduce_l2(value, ctx.integers(others), True).output(0)
    scaled = ops.multiply(value, ops.divide(ctx.get(g), lengths))
    return scaled, ctx.convert(lengths, ctx.out_dtype(1)) if ctx.is_read(1) else None
