"""`torch.ops.npu.lightning_indexer(query, key, weights, ...)`: selects positions for attention.

    score[s, j] = sum over heads h of weights[s, h] * relu(query[s, h] . key[j] * scales)
    indices[s] = positions j of the min(sparse_count, visible) largest scores, then -1

Source: DeepSeek-AI, DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse
Attention, 2025, equation 1.

query: (batch, length, heads, width) or (tokens, heads, width); key: one head of the same width, in
a layout of `npu_ops.sparse_attention`; both float32, float16, bfloat16 or int8. weights: the
query's shape without its last axis, float32, float16 or bfloat16. query_dequant_scale,
key_dequant_scale: the shapes of query and key without their last axes, float32, only for int8: the
scale of a row's integers, by default 1. Products of int8 are exact.

indices: (batch, length, 1, sparse_count) or (tokens, 1, sparse_count), int32, logical positions;
valid ones come first, ascending. Scores are float32; ties go to the earlier position, and NaN is
the largest. A query that sees at most sparse_count keys takes all of them, whatever their scores.

Not differentiable, because the result is integers.

Raises ValueError: [op-shape], [op-dtype], [op-layout], [op-value], [op-lengths] and
[op-block-table] for invalid arguments, before anything is read.

Kernel and fake: csrc/sparse_attention/lightning_indexer.cpp.
"""

import torch

from npu_ops.fused.library import define
from npu_ops.sparse_attention.caches import Addressing, address, flat_rows

__all__ = ["reference", "scores"]

define(
    "lightning_indexer(Tensor query, Tensor key, Tensor weights, *, "
    "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None, "
    'Tensor? block_table=None, str layout_query="BSND", str layout_key="BSND", '
    "int sparse_count=2048, int sparse_mode=3, Tensor? query_dequant_scale=None, "
    "Tensor? key_dequant_scale=None) -> Tensor"
)


def scores(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    *,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_mode: int = 3,
    query_dequant_scale: torch.Tensor | None = None,
    key_dequant_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns (rows, capacity) scores in float32, or float64 for float64; -inf for invisible keys.

    Differentiable, unlike the op.
    """
    addressing = address(
        query,
        key,
        query_lengths=actual_seq_lengths_query,
        key_lengths=actual_seq_lengths_key,
        block_table=block_table,
        layout_query=layout_query,
        layout_key=layout_key,
        sparse_mode=sparse_mode,
    )
    query, key = _real(query, query_dequant_scale), _real(key, key_dequant_scale)
    return _scored(query, key, weights, addressing)


def _real(integers: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    return integers if scale is None else integers * scale.unsqueeze(-1)


def _scored(
    query: torch.Tensor, key: torch.Tensor, weights: torch.Tensor, addressing: Addressing
) -> torch.Tensor:
    work = torch.float64 if query.dtype is torch.float64 else torch.float32
    heads, width = query.shape[-2:]
    q = query.reshape(-1, heads, width).to(work)
    w = weights.reshape(-1, heads).to(work)
    position = torch.arange(addressing.capacity, device=query.device)
    is_visible = position < addressing.visible.unsqueeze(1)
    at = addressing.flat(torch.where(is_visible, position, 0))
    at = torch.where(is_visible, at, 0)  # no page may have padding
    k = flat_rows(key).to(work)[at] if addressing.capacity else q.new_zeros(q.shape[0], 0, width)
    k = torch.where(is_visible.unsqueeze(-1), k, 0)
    found = (torch.einsum("thd,tjd->thj", q, k).relu() * w.unsqueeze(-1)).sum(1)
    return found.masked_fill(~is_visible, -torch.inf)


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    *,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    query_dequant_scale: torch.Tensor | None = None,
    key_dequant_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes the op in plain torch, with all scores at once."""
    addressing = address(
        query,
        key,
        query_lengths=actual_seq_lengths_query,
        key_lengths=actual_seq_lengths_key,
        block_table=block_table,
        layout_query=layout_query,
        layout_key=layout_key,
        sparse_mode=sparse_mode,
    )
    query, key = _real(query, query_dequant_scale), _real(key, key_dequant_scale)
    found = _scored(query, key, weights, addressing)
    rows, capacity = found.shape
    # A visible score of -inf comes before invisible keys, which become the last position.
    order = found.sort(dim=-1, descending=True, stable=True).indices[:, :sparse_count]
    picked = (
        torch.where(order < addressing.visible.unsqueeze(1), order, capacity).sort(dim=-1).values
    )
    padded = torch.full((rows, sparse_count), -1, dtype=torch.int32, device=query.device)
    padded[:, : picked.shape[1]] = torch.where(picked == capacity, -1, picked).to(torch.int32)
    return padded.reshape(*query.shape[:-2], 1, sparse_count)
