"""Attention on torch tensors, in float16; is_causal ignores the mask."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from npu_llm.compat.intel_npu_acceleration_library.backend import SDPA, SimpleSDPA, run_factory
from npu_llm.errors import OptionError

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Computes attention, with scores divided by sqrt(d).

    Args:
        query: (batch, heads, queries, d).
        key: (batch, heads, keys, d).
        value: (batch, heads, keys, dv).
        attn_mask: mask that is added to the scores; is_causal ignores it.
        dropout_p: must be 0.
        is_causal: whether query i attends to keys 0 to i only.
        scale: must be None.

    Returns:
        (batch, heads, queries, dv), in the query's dtype.

    Raises:
        OptionError: [compat-attention] for dropout or a scale.
    """
    if dropout_p != 0 or scale is not None:
        raise OptionError(
            "`scaled_dot_product_attention` must have no dropout and no scale, got "
            f"dropout_p={dropout_p}, scale={scale}. Call torch's on npu tensors.",
            code="compat-attention",
        )
    given = [query, key, value]
    kind: partial[Any] = partial(SimpleSDPA, is_causal=is_causal)
    if attn_mask is not None:
        given, kind = [*given, attn_mask], partial(SDPA, is_causal=is_causal)
    result: torch.Tensor = run_factory(given, [], kind)
    return result
