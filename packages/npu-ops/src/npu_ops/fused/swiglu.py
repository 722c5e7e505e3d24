"""`torch.ops.npu.swiglu(gate, up)`: the gated activation of Llama's feed-forward layers.

    y = gate * sigmoid(gate) * up

Source: Shazeer, GLU Variants Improve Transformer, 2020, equation 5, without its two products.

gate, up, y: one shape and dtype, float32, bfloat16, float16 or float64. Halves of one product
(`gate, up = both.chunk(2, -1)`) are read in place. Products are float32 (float64 for float64).
Differentiable in both.

Raises ValueError: [op-shape] and [op-dtype] for arguments that do not fit together.

Kernel and fake: csrc/fused/swiglu.cpp.
"""

from typing import Any

import torch

from npu_ops.fused.library import define, register_gradient

__all__ = ["reference"]

define("swiglu(Tensor gate, Tensor up) -> Tensor")


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Computes the op in plain torch."""
    work = torch.float64 if gate.dtype is torch.float64 else torch.float32
    return (torch.nn.functional.silu(gate.to(work)) * up.to(work)).to(gate.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    gate, up = ctx.saved_tensors
    work = torch.float64 if gate.dtype is torch.float64 else torch.float32
    wide, grad = gate.to(work), grad.to(work)
    sigmoid = wide.sigmoid()
    silu = wide * sigmoid
    grad_gate = grad_up = None
    if ctx.needs_input_grad[0]:
        slope = sigmoid + silu * (1 - sigmoid)
        grad_gate = (grad * up.to(work) * slope).to(gate.dtype)
    if ctx.needs_input_grad[1]:
        grad_up = (grad * silu).to(up.dtype)
    return grad_gate, grad_up


register_gradient("swiglu", setup_context=_setup_context, backward=_backward)
