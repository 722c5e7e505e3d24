"""Sparse attention of kernel programs: options, and a reference block selection for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_ops.errors import OperatorInputError
from npu_ops.kernel_programs.program import BLOCK_SLOTS, Attend, KernelProgram

if TYPE_CHECKING:
    import torch

__all__ = ["SparseAttention", "key_bounds", "select_blocks", "why_not_sparse"]


_FEWEST_BLOCKS = 4  # the first, the two newest, and one selected block
_MOST_BLOCKS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class SparseAttention:
    """Approximate attention for models that were trained with dense attention.

    In a step of one token, each key head attends to top_k / 16 blocks of 16 positions: the first,
    the two newest, and the blocks with the highest possible score. The bound of a block's scores
    follows from the minimum and maximum of each key channel, as in Quest (arXiv 2406.10774); query
    heads that share keys share the selection. Steps of several tokens, such as prompts, remain
    dense.

    Attributes:
        top_k: number of positions to attend to, a multiple of 16 and at least 64.
        after: maximum length of a dense sequence, at least top_k; None for top_k.

    Raises:
        OperatorInputError: [sparse-attention] for other numbers.
    """

    top_k: int
    after: int | None = None

    def __post_init__(self) -> None:
        fewest, most = _FEWEST_BLOCKS * BLOCK_SLOTS, _MOST_BLOCKS * BLOCK_SLOTS
        if type(self.top_k) is not int or self.top_k % BLOCK_SLOTS or not (
            fewest <= self.top_k < most
        ):  # fmt: skip
            raise OperatorInputError(
                f"SparseAttention: `top_k` must be a multiple of {BLOCK_SLOTS}, the block size, "
                f"and at least {fewest}, got {self.top_k!r}. Pass, for example, 2048.",
                code="sparse-attention",
            )
        if self.after is not None and (type(self.after) is not int or self.after < self.top_k):
            raise OperatorInputError(
                f"SparseAttention: `after` must be an integer of at least top_k, {self.top_k}, got "
                f"{self.after!r}. Omit it for top_k.",
                code="sparse-attention",
            )

    @property
    def blocks(self) -> int:
        """The number of blocks of keys that a token attends to."""
        return self.top_k // BLOCK_SLOTS

    @property
    def dense_up_to(self) -> int:
        """Maximum length of a dense sequence."""
        return self.top_k if self.after is None else self.after

    def __str__(self) -> str:
        """Formats the numbers for reports, as in "2,048 after 4,096"."""
        beyond = "" if self.dense_up_to == self.top_k else f" after {self.dense_up_to:,}"
        return f"{self.top_k:,}{beyond}"


def why_not_sparse(program: KernelProgram) -> str | None:
    """Returns why a program does not support sparse attention, as "has a window"; None if it does.

    Args:
        program: any program; without attention there is nothing to select.
    """
    attends = [one for one in program.instructions if isinstance(one, Attend)]
    if not attends:
        return "does not attend to a cache"
    kinds = {
        "window": "a window",
        "soft_cap": "a soft cap",
        "sinks": "attention sinks",
        "slopes": "slopes by distance (ALiBi)",
    }
    for one in attends:
        for name, said in kinds.items():
            if getattr(one, name) is not None:
                return f"has {said} in layer {one.layer}"
    return None


def key_bounds(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the minimum and maximum of each channel of whole blocks, rounded outwards.

    Args:
        keys: (blocks * 16, key heads, size) float32.

    Returns:
        Two tensors (blocks, key heads, size) float32, with values of bfloat16; infinite for NaN.
    """
    import torch

    blocks = keys.reshape(-1, BLOCK_SLOTS, *keys.shape[1:])
    bad = blocks.isnan().any(1)
    least = torch.where(bad, -torch.inf, blocks.amin(1))
    most = torch.where(bad, torch.inf, blocks.amax(1))
    return _rounded_down(least), -_rounded_down(-most)


def select_blocks(
    queries: torch.Tensor, keys: torch.Tensor, sparse_attention: SparseAttention
) -> torch.Tensor:
    """Returns the blocks that each key head attends to.

    Args:
        queries: (heads, size) float32, of the last position, with the scores' scale.
        keys: (positions, key heads, size) float32, more than sparse_attention.dense_up_to.
        sparse_attention: the options.

    Returns:
        (key heads, blocks) int64, ascending.
    """
    import torch

    newest = (len(keys) - 1) // BLOCK_SLOTS
    # The first and the two newest are always selected.
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
    # Ties go to the newest block.
    found = ranks.flip(1).argsort(dim=1, descending=True, stable=True)[:, :free]
    chosen = ranks.shape[1] - found
    always = torch.tensor([0, newest - 1, newest]).expand(len(chosen), 3)
    return torch.cat([chosen, always], 1).sort(1).values


def _rounded_down(values: torch.Tensor) -> torch.Tensor:
    """Rounds down to bfloat16."""
    import torch

    bits = values.contiguous().view(torch.int32)
    moves = (bits & 0xFFFF != 0) & (bits < 0)
    return (((bits >> 16) + moves) << 16).view(torch.float32)
