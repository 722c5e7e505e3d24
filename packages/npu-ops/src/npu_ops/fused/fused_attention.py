"""`torch.ops.npu.fused_attention(query, key, value, ...)`: attention of language models.

    y = softmax(scale * query @ key.T + mask) @ value        scale = 1 / sqrt(head size) by default

Each head of key and value serves heads / key heads consecutive heads of query. With is_causal the
queries are the last positions of the keys: query i has position keys - queries + i and attends to
keys up to its own; with a window w, only to the last w of these.

With a cache (`fused_attention(query, key, value, key_cache, value_cache, position, ...)`), key and
value belong to the new tokens. They are first written into the caches at `position`, in place; then
the queries attend to positions 0 up to their own, or to their window.

Source: Vaswani et al., Attention Is All You Need, 2017, equation 1; Ainslie et al., GQA, 2023;
Beltagy et al., Longformer, 2020 (window, counted as by Mistral). aten.scaled_dot_product_attention
differs in is_causal, where its queries are the first positions.

query, y: (batch, heads, length, head size); key, value: (batch, key heads, keys, head size);
key_cache, value_cache: (batch, key heads, capacity, head size), also a view of a larger tensor. All
of one dtype: float32, bfloat16, float16 or float64. Without a cache differentiable in query, key
and value; backward recomputes the scores in full.

Raises ValueError: [op-shape] and [op-dtype] for arguments that do not fit together, [op-value] for
an invalid window or position; RuntimeError: [op-gradient] if a gradient is requested through a
cache.

Kernel and fake: csrc/fused/fused_attention.cpp.
"""

import math
from typing import Any

import torch

from npu_ops.fused.library import define, register_gradient

__all__ = ["cache_reference", "reference"]

define(
    "fused_attention(Tensor query, Tensor key, Tensor value, *, bool is_causal=False, "
    "int? window=None, float? scale=None) -> Tensor"
)
define(
    "fused_attention.cache(Tensor query, Tensor key, Tensor value, Tensor(a!) key_cache, "
    "Tensor(b!) value_cache, SymInt position, *, int? window=None, float? scale=None) -> Tensor"
)


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    is_causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Computes the op in plain torch, with all scores at once."""
    work = torch.float64 if query.dtype is torch.float64 else torch.float32
    weights = _weights(query, key, is_causal, window, _scale(query, scale))
    return (weights @ _spread(value, query).to(work)).to(query.dtype)


def cache_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    position: int,
    *,
    window: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Computes the form with a cache in plain torch; writes the caches as well."""
    end = position + key.shape[2]
    key_cache[:, :, position:end] = key
    value_cache[:, :, position:end] = value
    keys, values = key_cache[:, :, :end], value_cache[:, :, :end]
    return reference(query, keys, values, is_causal=True, window=window, scale=scale)


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _spread(shared: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Repeats each head of a key or value for the heads of query that share it."""
    return shared.repeat_interleave(query.shape[1] // shared.shape[1], 1)


def _weights(
    query: torch.Tensor, key: torch.Tensor, is_causal: bool, window: int | None, scale: float
) -> torch.Tensor:
    work = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = query.to(work) @ _spread(key, query).to(work).mT * scale
    if is_causal:
        queries, keys = query.shape[2], key.shape[2]
        at = torch.arange(queries, device=query.device).unsqueeze(1) + (keys - queries)
        column = torch.arange(keys, device=query.device)
        hidden = column > at
        if window is not None:
            hidden = hidden | (column <= at - window)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1)


def _setup_context(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: torch.Tensor
) -> None:
    ctx.save_for_backward(*inputs)
    ctx.is_causal = keyword_only_inputs["is_causal"]
    ctx.window = keyword_only_inputs["window"]
    ctx.scale = _scale(inputs[0], keyword_only_inputs["scale"])


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Dao et al., FlashAttention, 2022, appendix B.2, without its blocks."""
    query, key, value = ctx.saved_tensors
    weights = _weights(query, key, ctx.is_causal, ctx.window, ctx.scale)
    work = weights.dtype
    grad = grad.to(work)
    grad_weights = grad @ _spread(value, query).to(work).mT
    along = (grad_weights * weights).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - along) * ctx.scale
    grad_query = grad_scores @ _spread(key, query).to(work)
    grad_key = _gathered(grad_scores.mT @ query.to(work), key)
    grad_value = _gathered(weights.mT @ grad, value)
    return grad_query.to(query.dtype), grad_key, grad_value


def _gathered(grad: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """Sums gradients over the heads that share a key or value."""
    batch, heads, *rest = grad.shape
    per_group = grad.reshape(batch, shared.shape[1], heads // shared.shape[1], *rest)
    return per_group.sum(2).to(shared.dtype)


register_gradient("fused_attention", setup_context=_setup_context, backward=_backward)
