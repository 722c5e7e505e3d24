"""`torch.ops.npu.conv_bn_relu(...)`: convolution, batch norm with running statistics, and ReLU.

    y = max((conv(x, weight) + bias - running_mean) * f + bn_bias, 0)
    f = bn_weight / sqrt(running_var + eps)

computed as one convolution with weight * f and (bias - running_mean) * f + bn_bias.

Source: Ioffe and Szegedy, Batch Normalization, 2015, algorithm 2; aten.convolution, aten.batch_norm
with training=False, aten.relu.

x: (batch, channels, ...) with 1 to 3 spatial axes; weight: (outputs, channels / groups, ...); bias,
running_mean, running_var, bn_weight, bn_bias: (outputs,). x and weight of one dtype: float32,
bfloat16, float16 or float64; the others of any of these. y: (batch, outputs, ...) in the memory
format of x. stride, padding and dilation are one number, or one per spatial axis. Differentiable in
x, weight, bias, bn_weight and bn_bias; the statistics are constants.

Raises ValueError: [op-shape] and [op-dtype] for arguments that do not fit together, [op-value] for
an invalid stride, padding, dilation or groups.

Kernel and fake: csrc/fused/conv_bn_relu.cpp.
"""

from collections.abc import Sequence
from typing import Any

import torch

from npu_ops.fused.library import define, needed_gradients, register_gradient

__all__ = ["reference"]

define(
    "conv_bn_relu(Tensor x, Tensor weight, Tensor? bias, Tensor running_mean, Tensor running_var, "
    "Tensor? bn_weight=None, Tensor? bn_bias=None, *, int[] stride=[1], int[] padding=[0], "
    "int[] dilation=[1], int groups=1, float eps=1e-05) -> Tensor"
)


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    bn_weight: torch.Tensor | None = None,
    bn_bias: torch.Tensor | None = None,
    *,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Computes the op in plain torch."""
    convolved = _convolution(x, weight, bias, (stride, padding, dilation, groups))
    mean, var = running_mean.to(x.dtype), running_var.to(x.dtype)
    weight_of_norm = None if bn_weight is None else bn_weight.to(x.dtype)
    bias_of_norm = None if bn_bias is None else bn_bias.to(x.dtype)
    return torch.relu(
        torch.nn.functional.batch_norm(convolved, mean, var, weight_of_norm, bias_of_norm, eps=eps)
    )


def _convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, options: Any
) -> torch.Tensor:
    stride, padding, dilation, groups = options
    zeros = [0] * (x.dim() - 2)
    bias = None if bias is None else bias.to(x.dtype)
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, zeros, groups)


def _setup_context(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: torch.Tensor
) -> None:
    ctx.save_for_backward(*inputs, output)
    ctx.options = keyword_only_inputs


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradient of the folded convolution, propagated to its unfolded arguments."""
    x, weight, bias, mean, var, bn_weight, bn_bias, output = ctx.saved_tensors
    options = ctx.options
    work = torch.float64 if x.dtype is torch.float64 else torch.float32
    inverse = (var.to(work) + options["eps"]).rsqrt()
    factor = inverse if bn_weight is None else inverse * bn_weight.to(work)
    column = (-1, *[1] * (x.dim() - 1))
    folded = (weight.to(work) * factor.view(column)).to(x.dtype)
    axes = x.dim() - 2
    spread = [list(options[name]) * (axes if len(options[name]) == 1 else 1) for name in _SPATIAL]
    needs = needed_gradients(ctx, 7)
    needs_weight = needs[1] or needs[5]
    grad_x, grad_folded, _ = torch.ops.aten.convolution_backward(
        grad * (output > 0), x, folded, None, *spread, False, [0] * axes, options["groups"],
        [needs[0], needs_weight, False],
    )  # fmt: skip
    grad_shift = (grad * (output > 0)).to(work).sum([0, *range(2, x.dim())])
    grads: list[torch.Tensor | None] = [grad_x, *[None] * 6]
    if needs[1]:
        grads[1] = (grad_folded.to(work) * factor.view(column)).to(weight.dtype)
    if needs[2]:
        grads[2] = (grad_shift * factor).to(bias.dtype)
    if needs[5]:
        shift = -mean.to(work) if bias is None else bias.to(work) - mean.to(work)
        along = (grad_folded.to(work) * weight.to(work)).flatten(1).sum(1)
        grads[5] = ((along + grad_shift * shift) * inverse).to(bn_weight.dtype)
    if needs[6]:
        grads[6] = grad_shift.to(bn_bias.dtype)
    return tuple(grads)


_SPATIAL = ("stride", "padding", "dilation")

register_gradient("conv_bn_relu", setup_context=_setup_context, backward=_backward)
