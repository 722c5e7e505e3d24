"""`torch.ops.npu.dynamic_quantize(x, *, group_size=None)`: dynamic quantization to int8.

    scale = max(|x|) / 127        per row of the last axis, or per group of it
    values = round(x / scale), halves to even

Source: Dettmers et al., LLM.int8(), 2022, section 2.1 (vector-wise, absolute maximum).

x: (..., width) of float32, bfloat16, float16 or float64; values: int8 of the same shape, from -127
to 127; scale: float32, (..., width / group_size), so that values * scale is x up to rounding. A
group of zeros has scale 0. A group with a non-finite x has a non-finite scale and values of 0.

It is a step function without a gradient; backward raises.

Raises ValueError: [op-shape] and [op-dtype] for an x that cannot be quantized, [op-value] for a
group size that does not divide its last axis; RuntimeError: [op-gradient] from backward.

Kernel and fake: csrc/fused/dynamic_quantize.cpp.
"""

from typing import Any

import torch

from npu_ops.fused.library import define, register_gradient

__all__ = ["reference"]

define("dynamic_quantize(Tensor x, *, int? group_size=None) -> (Tensor, Tensor)")


def reference(
    x: torch.Tensor, *, group_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the op in plain torch."""
    work = torch.float64 if x.dtype is torch.float64 else torch.float32
    width = x.shape[-1] if group_size is None else group_size
    groups = x.to(work).reshape(*x.shape[:-1], x.shape[-1] // width, width)
    step = groups.abs().amax(-1, keepdim=True) / 127
    usable = (step > 0) & step.isfinite()
    rounded = (groups / torch.where(usable, step, 1)).round().clamp(-127, 127)
    values = torch.where(usable, rounded, 0).to(torch.int8)
    return values.reshape(x.shape), step.squeeze(-1).float()


def _backward(ctx: Any, *grads: torch.Tensor) -> None:
    raise RuntimeError(
        "npu.dynamic_quantize: rounding has no gradient, got a backward through it. Quantize under "
        "torch.no_grad(), or x.detach(). [op-gradient]"
    )


register_gradient("dynamic_quantize", setup_context=None, backward=_backward)
