"""The gradients of a convolution, written as convolutions.

A program has no op for them; the converters of convolutions serve these instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["convolution_backward"]


def convolution_backward(
    grad_output: torch.Tensor,
    input_: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Computes what `aten.convolution_backward` does, with its arguments.

    With y the convolution of x and w: the gradient of x is the transposed convolution of y's
    gradient and w; the gradient of w is the convolution of x and y's gradient, with channels and
    batch exchanged and stride and dilation exchanged (Dumoulin and Visin, "A guide to convolution
    arithmetic for deep learning", 2016, section 4).

    Args:
        grad_output: (batch, out_channels, *out_size).
        input_: (batch, in_channels, *size).
        weight: (out_channels, in_channels / groups, *kernel); for transposed convolutions
            (in_channels, out_channels / groups, *kernel).
        bias_sizes: not needed.
        stride: one number per spatial axis, or one for all; so are padding, dilation and
            output_padding.
        padding: see stride.
        dilation: see stride.
        transposed: whether the convolution was a transposed one.
        output_padding: of a transposed one.
        groups: number of groups of channels.
        output_mask: which of the three gradients are wanted.

    Returns:
        Gradients of input, weight and bias; None for those that are not wanted.
    """
    spatial = weight.dim() - 2
    strides, pads, dilations = (_spread(v, spatial) for v in (stride, padding, dilation))
    none = [0] * spatial
    grad_input = grad_weight = grad_bias = None
    if output_mask[0] and transposed:
        grad_input = torch.ops.aten.convolution.default(
            grad_output, weight, None, strides, pads, dilations, False, none, groups
        )
        # A large output padding makes room for windows that no input has.
        for axis, size in enumerate(input_.shape[2:], start=2):
            grad_input = grad_input.narrow(axis, 0, size)
        grad_input = grad_input.contiguous()
    elif output_mask[0]:
        rests = [
            size - ((out - 1) * step - 2 * pad + gap * (window - 1) + 1)
            for size, out, step, pad, gap, window in zip(
                input_.shape[2:],
                grad_output.shape[2:],
                strides,
                pads,
                dilations,
                weight.shape[2:],
                strict=True,
            )
        ]
        grad_input = torch.ops.aten.convolution.default(
            grad_output, weight, None, strides, pads, dilations, True, rests, groups
        )
    if output_mask[1]:
        small, large = (input_, grad_output) if transposed else (grad_output, input_)
        grad_weight = _weight_gradient(large, small, weight, strides, pads, dilations, groups)
    if output_mask[2]:
        grad_bias = grad_output.sum([0, *range(2, grad_output.dim())])
    return grad_input, grad_weight, grad_bias


def _weight_gradient(
    large: torch.Tensor,
    small: torch.Tensor,
    weight: torch.Tensor,
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    groups: int,
) -> torch.Tensor:
    """`large` has the axes that the window moves over, `small` one place for each window."""
    batch, channels, *sizes = large.shape
    per_group = channels // groups
    axes = list(range(3, 3 + len(sizes)))
    rows = large.reshape(batch, groups, per_group, *sizes).permute(2, 1, 0, *axes)
    rows = rows.reshape(per_group, groups * batch, *sizes)
    result = torch.ops.aten.convolution.default(
        rows, small.transpose(0, 1), None, dilations, pads, strides, False, [0] * len(sizes), groups
    )
    for axis, window in enumerate(weight.shape[2:], start=2):
        result = result.narrow(axis, 0, window)
    gradient: torch.Tensor = result.transpose(0, 1).contiguous()
    return gradient


def _spread(values: Sequence[int], count: int) -> list[int]:
    listed = list(values)
    return listed * count if len(listed) == 1 else listed
