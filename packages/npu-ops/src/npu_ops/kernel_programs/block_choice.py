"""Which blocks of keys sparse attention chooses, in torch: the reference of the kernels' choice."""

from __future__ import annotations

import torch

from npu_ops.kernel_programs.rows import BLOCK_SLOTS
from npu_ops.kernel_programs.sparse_attention import SparseAttention

__all__ = ["choose_blocks", "key_bounds"]


def key_bounds(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the least and the largest of each channel of whole blocks, rounded outwards.

    Args:
        keys: (blocks * 16, key heads, size) float32.

    Returns:
        Two of (blocks, key heads, size) float32, numbers that bfloat16 has; infinite for NaN.
    """
    blocks = keys.reshape(-1, BLOCK_SLOTS, *keys.shape[1:])
    bad = blocks.isnan().any(1)
    least = torch.where(bad, -torch.inf, blocks.amin(1))
    most = torch.where(bad, torch.inf, blocks.amax(1))
    return _rounded_down(least), -_rounded_down(-most)


def choose_blocks(
    queries: torch.Tensor, keys: torch.Tensor, sparse_attention: SparseAttention
) -> torch.Tensor:
    """Returns the blocks that each head of keys attends to.

    Args:
        queries: (heads, size) float32, of the last position, with the scores' scale.
        keys: (positions, key heads, size) float32, more than sparse_attention.dense_up_to.
        sparse_attention: how many to choose.

    Returns:
        (key heads, blocks) int64, rising.
    """
    newest = (len(keys) - 1) // BLOCK_SLOTS
    # The first and the two newest are always chosen.
    low, high = key_bounds(keys[BLOCK_SLOTS : (newest - 1) * BLOCK_SLOTS])
    heads = queries.reshape(keys.shape[1], -1, queries.shape[1])
    # (key heads, heads of a group, candidates)
    bounds = torch.maximum(
        heads[:, :, None] * low.transpose(0, 1)[:, None],
        heads[:, :, None] * high.transpose(0, 1)[:, None],
    ).sum(-1)
    bounds = torch.where(bounds.isnan(), torch.inf, bounds)
    highest = bounds.amax(-1, keepdim=True)
    ranks = torch.where(bounds == highest, 0, bounds - highest).amax(1)
    free = sparse_attention.blocks - 3
    # Of equal ranks the newest.
    found = ranks.flip(1).argsort(dim=1, descending=True, stable=True)[:, :free]
    chosen = ranks.shape[1] - found
    always = torch.tensor([0, newest - 1, newest]).expand(len(chosen), 3)
    return torch.cat([chosen, always], 1).sort(1).values


def _rounded_down(values: torch.Tensor) -> torch.Tensor:
    """Returns the numbers of bfloat16 at or below others."""
    bits = values.contiguous().view(torch.int32)
    moves = (bits & 0xFFFF != 0) & (bits < 0)
    return (((bits >> 16) + moves) << 16).view(torch.float32)
