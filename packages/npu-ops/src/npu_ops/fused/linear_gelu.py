"""`torch.ops.npu.linear_gelu(x, weight, bias=None, *, approximate="none")`: linear and GELU.

    z = x @ weight.T + bias
    y = z * Phi(z)                                                       approximate="none"
    y = z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 * z**3)))         approximate="tanh"

Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016; aten.linear, then aten.gelu.

x: (..., inputs); weight: (outputs, inputs); bias: (outputs,); y: (..., outputs). All of one dtype:
float32, bfloat16, float16 or float64. Differentiable in all tensors; backward recomputes z.

Raises ValueError: [op-shape] and [op-dtype] for arguments that do not fit together, [op-value] for
another approximation.

Kernel and fake: csrc/fused/linear_gelu.cpp.
"""

from typing import Any

import torch

from npu_ops.fused.library import define, register_gradient
from npu_ops.fused.linear_relu import linear_gradients

__all__ = ["reference"]

define(
    "linear_gelu(Tensor x, Tensor weight, Tensor? bias=None, *, str approximate='none') -> Tensor"
)


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    approximate: str = "none",
) -> torch.Tensor:
    """Computes the op in plain torch."""
    product = torch.nn.functional.linear(x, weight, bias)
    return torch.nn.functional.gelu(product, approximate=approximate)


def _setup_context(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: torch.Tensor
) -> None:
    ctx.save_for_backward(*inputs)
    ctx.approximate = keyword_only_inputs["approximate"]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    product = torch.nn.functional.linear(x, weight, bias)
    inner = torch.ops.aten.gelu_backward(grad, product, approximate=ctx.approximate)
    return linear_gradients(ctx, inner, x, weight)


register_gradient("linear_gelu", setup_context=_setup_context, backward=_backward)
