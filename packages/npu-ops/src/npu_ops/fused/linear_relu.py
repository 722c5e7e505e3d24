"""`torch.ops.npu.linear_relu(x, weight, bias=None)`: a linear layer and ReLU in one pass.

    y = max(x @ weight.T + bias, 0)

Source: aten.linear, then aten.relu.

x: (..., inputs); weight: (outputs, inputs); bias: (outputs,); y: (..., outputs). All of one dtype:
float32, bfloat16, float16 or float64. Differentiable in all arguments.

Raises ValueError: [op-shape] and [op-dtype] for arguments that do not fit together.

Kernel and fake: csrc/fused/linear_relu.cpp.
"""

from typing import Any

import torch

from npu_ops.fused.library import define, needed_gradients, register_gradient

__all__ = ["reference"]

define("linear_relu(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor")


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Computes the op in plain torch."""
    return torch.relu(torch.nn.functional.linear(x, weight, bias))


def linear_gradients(
    ctx: Any, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Returns the gradients of `x @ weight.T + bias` that are needed."""
    needs_x, needs_weight, needs_bias = needed_gradients(ctx, 3)
    rows = grad.reshape(-1, grad.shape[-1])
    return (
        grad @ weight if needs_x else None,
        rows.t() @ x.reshape(-1, x.shape[-1]) if needs_weight else None,
        rows.sum(0) if needs_bias else None,
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight, output = ctx.saved_tensors
    return linear_gradients(ctx, grad * (output > 0), x, weight)


register_gradient("linear_relu", setup_context=_setup_context, backward=_backward)
