"""`torch.ops.npu.rotary_embedding(x, cos, sin, *, interleaved=False)`: rotary position embedding.

    (x1, x2) -> (x1 * cos - x2 * sin, x2 * cos + x1 * sin)

for the pairs (i, half + i), or (2 * i, 2 * i + 1) if interleaved; features from 2 * half on are
unchanged.

Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021, equation 34;
GPT-NeoX and Llama pair halves, GPT-J neighbours.

x, y: (batch, heads, length, head size) of float32, bfloat16, float16 or float64; cos, sin:
(length, half) or (batch or 1, length, half), one angle per pair, half at most half the head size.
Pass tables with each angle twice, such as transformers', as `cos[..., :half]`.
Products are float32 (float64 for float64). Differentiable in all tensors.

Raises ValueError: [op-shape] and [op-dtype] for arguments that do not fit together.

Kernel and fake: csrc/fused/rotary_embedding.cpp.
"""

from typing import Any

import torch

from npu_ops.fused.library import define, register_gradient

__all__ = ["reference"]

define("rotary_embedding(Tensor x, Tensor cos, Tensor sin, *, bool interleaved=False) -> Tensor")


def reference(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False
) -> torch.Tensor:
    """Computes the op in plain torch."""
    work = _work(x)
    first, second, rest = _pairs(x, cos.shape[-1], interleaved)
    c, s = _per_head(cos, work), _per_head(sin, work)
    rotated = _join(first * c - second * s, second * c + first * s, interleaved)
    return torch.cat([rotated.to(x.dtype), rest], -1)


def _work(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _per_head(table: torch.Tensor, work: torch.dtype) -> torch.Tensor:
    return table.to(work).unsqueeze(-3)


def _pairs(
    x: torch.Tensor, half: int, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rotated, rest = x[..., : 2 * half].to(_work(x)), x[..., 2 * half :]
    if interleaved:
        return rotated[..., 0::2], rotated[..., 1::2], rest
    return rotated[..., :half], rotated[..., half:], rest


def _join(first: torch.Tensor, second: torch.Tensor, interleaved: bool) -> torch.Tensor:
    if interleaved:
        return torch.stack([first, second], -1).flatten(-2)
    return torch.cat([first, second], -1)


def _setup_context(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: torch.Tensor
) -> None:
    ctx.save_for_backward(*inputs)
    ctx.interleaved = keyword_only_inputs["interleaved"]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, cos, sin = ctx.saved_tensors
    needs_x, needs_cos, needs_sin = ctx.needs_input_grad
    grad_x = grad_cos = grad_sin = None
    if needs_x:  # the inverse is a rotation by the negative angle
        grad_x = torch.ops.npu.rotary_embedding(grad, cos, -sin, interleaved=ctx.interleaved)
    if needs_cos or needs_sin:
        first, second, _ = _pairs(x, cos.shape[-1], ctx.interleaved)
        g1, g2, _ = _pairs(grad, cos.shape[-1], ctx.interleaved)
        along = (g1 * first + g2 * second).sum(1)
        across = (g2 * first - g1 * second).sum(1)
        grad_cos = along.sum_to_size(cos.shape).to(cos.dtype) if needs_cos else None
        grad_sin = across.sum_to_size(sin.shape).to(sin.dtype) if needs_sin else None
    return grad_x, grad_cos, grad_sin


register_gradient("rotary_embedding", setup_context=_setup_context, backward=_backward)
