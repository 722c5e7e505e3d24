"""Gradients of convolutions: of the input for any, of weight and bias for kernels of one place.

The formulas are in npu_compiler.passes.decompose (Dumoulin and Visin, 2016, section 4).
Other weight gradients are the host's by rule: written as a convolution with batch and channels
exchanged they took 1.3 to 3.9 times what the host's kernel takes, and for kernels of one place,
which are a matrix product, half of it (shapes of ResNet-50, one thread, November 2026).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering.context import Context
from npu_compiler.lowering.converters.convolution import grouped_kernel, spread
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

aten = torch.ops.aten


@dataclass(frozen=True)
class _Windows:
    """Where the windows of a convolution lie: one number per spatial axis, and its groups."""

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
    """Whether the weight's gradient is one matrix product of the gradient and the input."""
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
    """The transposed convolution; places that no window reached make up its rest."""
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
    # A large output padding makes room for windows that no input has.
    sizes = _known(ctx, input_)
    if list(result.get_shape()) == sizes:
        return result
    return _cut(ctx, result, sizes[2:], [1] * (len(sizes) - 2))


def _of_weight(
    ctx: Context, grad_output: fx.Node, input_: fx.Node, weight: fx.Node, strides: list[int]
) -> ov.Output:
    """Of a kernel of one place: gradient times input, summed over batch and places."""
    batch, channels, *sizes = _known(ctx, input_)
    filters, places = _known(ctx, grad_output)[1], _known(ctx, grad_output)[2:]
    value = ctx.get(input_)
    if any(step > 1 for step in strides):
        value = _cut(ctx, value, sizes, strides)
    count = math.prod(places)
    left = ctx.reshape(ctx.get(grad_output), [batch, filters, count])
    right = ctx.reshape(value, [batch, channels, count])
    if filters * channels > 2 * (filters + channels) * count:
        # A product per image would write more than exchanging batch and channels does.
        left = ctx.reshape(ctx.transpose(left, [1, 0, 2]), [filters, batch * count])
        right = ctx.reshape(ctx.transpose(right, [1, 0, 2]), [channels, batch * count])
        total = ops.matmul(left, right, False, True).output(0)
    else:
        each = ops.matmul(left, right, False, True)
        total = ops.reduce_sum(each, ctx.integers([0]), False).output(0)
    return ctx.reshape(total, _known(ctx, weight))


def _cut(ctx: Context, value: ov.Output, ends: list[int], steps: list[int]) -> ov.Output:
    """Every so many places of the spatial axes, from the first to before an end."""
    count = len(ends)
    return ops.slice(
        value,
        ctx.integers([0] * count),
        ctx.integers(ends),
        ctx.integers(steps),
        ctx.integers(list(range(2, 2 + count))),
    ).output(0)


def _known(ctx: Context, node: fx.Node) -> list[int]:
    """Sizes, which the rule has shown to be numbers."""
    return [size for size in ctx.sizes(node) if size is not None]
