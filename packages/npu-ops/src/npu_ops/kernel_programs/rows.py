"""Rows: what a step of a kernel program runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["BLOCK_SLOTS", "Rows"]

BLOCK_SLOTS = 16  # how many slots of a sequence lie in one block of the cache


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The tokens of a step, of any number of sequences, all contiguous tensors on cpu.

    Attributes:
        tokens: (rows,) int64, the tokens' ids.
        positions: (rows,) int64, what position embeddings are chosen by.
        sequences: (rows,) int32, which row of block_tables each belongs to.
        slots: (rows,) int32, each row's place in its sequence; slot s lies in block
            block_tables[sequence, s // 16].
        block_tables: (sequences, most blocks) int32.
        kept: (kept,) int64, the rows whose logits are wanted.
        is_decode: whether each sequence has one row, the token that follows; sparse attention is
            for such steps.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    sequences: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    kept: torch.Tensor
    is_decode: bool = False
