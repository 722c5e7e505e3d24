"""`torch.ops.npu.rms_norm(x, weight, eps=1e-6)`: root mean square normalization.

    y = x / sqrt(mean(x**2) + eps) * weight        over the last axis

Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, equation 4; aten.rms_norm.

x, y: (..., width) of float32, bfloat16, float16 or float64; weight: (width,) of any of these. Sums
and products are float32 (float64 for float64) and rounded once, at the end. Differentiable in x and
weight.

Raises ValueError: [op-shape] and [op-dtype] for arguments that do not fit together.

Kernel and fake: csrc/fused/rms_norm.cpp.
"""

from typing import Any

import torch

from npu_ops.fused.library import define, register_gradient

__all__ = ["reference"]

define("rms_norm(Tensor x, Tensor weight, float eps=1e-06) -> Tensor")


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Computes the op in plain torch."""
    work = torch.float64 if x.dtype is torch.float64 else torch.float32
    wide = x.to(work)
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normal * weight.to(work)).to(x.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    work = torch.float64 if x.dtype is torch.float64 else torch.float32
    wide, grad = x.to(work), grad.to(work)
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + ctx.eps)
    normal = wide * inverse
    grad_x = grad_weight = None
    if ctx.needs_input_grad[0]:
        scaled = grad * weight.to(work)
        along = (scaled * normal).mean(-1, keepdim=True)
        grad_x = ((scaled - normal * along) * inverse).to(x.dtype)
    if ctx.needs_input_grad[1]:
        grad_weight = (grad * normal).sum_to_size(weight.shape).to(weight.dtype)
    return grad_x, grad_weight, None


register_gradient("rms_norm", setup_context=_setup_context, backward=_backward)
