"""`torch.ops.npu.addmm_relu(input, mat1, mat2, *, beta=1, alpha=1)`: a product, a sum and ReLU.

    y = max(beta * input + alpha * (mat1 @ mat2), 0)

Source: aten.addmm, then aten.relu.

mat1: (rows, inner); mat2: (inner, columns); input: broadcasts to (rows, columns);
y: (rows, columns). All of one dtype: float32, bfloat16, float16 or float64. Differentiable in all
tensors.

Raises ValueError: [op-shape] and [op-dtype] for arguments that do not fit together.

Kernel and fake: csrc/fused/addmm_relu.cpp.
"""

from typing import Any

import torch

from npu_ops.fused.library import define, register_gradient

__all__ = ["reference"]

define(
    "addmm_relu(Tensor input, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
)


def reference(
    input: torch.Tensor,  # noqa: A002  (the name in the schema)
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """Computes the op in plain torch."""
    return torch.relu(torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha))


def _setup_context(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: torch.Tensor
) -> None:
    addend, mat1, mat2 = inputs
    ctx.save_for_backward(mat1, mat2, output)
    ctx.addend_shape = addend.shape
    ctx.beta, ctx.alpha = keyword_only_inputs["beta"], keyword_only_inputs["alpha"]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    mat1, mat2, output = ctx.saved_tensors
    needs_addend, needs_mat1, needs_mat2 = ctx.needs_input_grad
    inner = grad * (output > 0)
    scaled = inner * ctx.alpha
    return (
        (inner * ctx.beta).sum_to_size(ctx.addend_shape) if needs_addend else None,
        scaled @ mat2.t() if needs_mat1 else None,
        mat1.t() @ scaled if needs_mat2 else None,
    )


register_gradient("addmm_relu", setup_context=_setup_context, backward=_backward)
