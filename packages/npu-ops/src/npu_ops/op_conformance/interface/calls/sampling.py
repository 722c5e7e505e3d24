"""Penalties on the logits of tokens that an answer already has.

Source: Keskar et al., CTRL, 2019 (repetition). Each sequence's tokens and their counts lie one
after another, `lengths` of them for each.
"""

from __future__ import annotations

import torch

__all__ = ["penalize", "penalize_repetition"]


def penalize(
    logits: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
    tokens: torch.Tensor,
    counts: torch.Tensor,
    lengths: list[int],
) -> torch.Tensor:
    """Takes `presence`, and `frequency` for each time, off the logits of tokens that occurred.

    Args:
        logits: (batch, vocabulary).
        presence: (batch,).
        frequency: (batch,).
        tokens: (all,), int64, no token twice in a sequence.
        counts: (all,), how often each occurred.
        lengths: tokens of each sequence.
    """
    rows = _rows(logits, lengths)
    penalty = presence[rows] + frequency[rows] * counts.to(logits.dtype)
    return logits.index_put((rows, tokens), logits[rows, tokens] - penalty)


def penalize_repetition(
    logits: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
    repetition: torch.Tensor,
    tokens: torch.Tensor,
    counts: torch.Tensor,
    lengths: list[int],
) -> torch.Tensor:
    """Divides positive logits of tokens that occurred by `repetition`, (batch,), then `penalize`.

    Negative ones are multiplied by it.
    """
    rows = _rows(logits, lengths)
    found = logits[rows, tokens]
    by = repetition[rows]
    changed = logits.index_put((rows, tokens), torch.where(found > 0, found / by, found * by))
    return penalize(changed, presence, frequency, tokens, counts, lengths)


def _rows(logits: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    numbers = torch.arange(len(lengths), device=logits.device)
    return numbers.repeat_interleave(torch.tensor(lengths, device=logits.device))
