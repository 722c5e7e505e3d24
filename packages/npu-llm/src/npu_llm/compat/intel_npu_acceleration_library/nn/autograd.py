"""AutogradMatMul: the product of a linear layer, forward and backward on the device."""

from __future__ import annotations

from typing import Any

import torch

from npu_llm.compat.intel_npu_acceleration_library.backend import run_matmul

__all__ = ["AutogradMatMul"]


class AutogradMatMul(torch.autograd.Function):
    """x (..., inputs) @ w (outputs, inputs).T, computed in float16."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns (..., outputs); a scale belongs to integer weights, which take no gradient."""
        ctx.save_for_backward(x, w)
        product: torch.Tensor = run_matmul(x, w, scale)
        return product

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of x and w."""
        x, w = ctx.saved_tensors
        of_x = of_w = None
        rows = grad.reshape(-1, grad.shape[-1])
        if ctx.needs_input_grad[0]:
            of_x = run_matmul(rows, w.T).reshape(x.shape).to(x.dtype)
        if ctx.needs_input_grad[1]:
            columns = x.reshape(-1, x.shape[-1]).T
            of_w = run_matmul(rows.T, columns.to(w.dtype)).to(w.dtype)
        return of_x, of_w, None
