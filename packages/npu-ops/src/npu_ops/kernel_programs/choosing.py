"""Chooses tokens by the logits of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from npu_ops import _C

__all__ = ["Drawing", "arg_max", "draw"]


class Drawing(Protocol):
    """How a token is drawn."""

    @property
    def temperature(self) -> float:
        """What scores are divided by, above 0."""

    @property
    def top_k(self) -> int:
        """How many of the most likely tokens are drawn from; 0 for all."""

    @property
    def top_p(self) -> float:
        """The most likely tokens that have this share together are drawn from."""

    @property
    def min_p(self) -> float:
        """Tokens below this share of the most likely one's are not drawn."""


def arg_max(logits: torch.Tensor) -> torch.Tensor:
    """Returns where the largest logit of each row stands, as ``logits.argmax(-1)`` does.

    torch goes through a row element by element, with threads of OpenMP that the team's step then
    has to let go: 52 us for 49,152 logits, where this takes 6 (two Zen 5 cores, 2026-11-25).

    Args:
        logits: (rows, vocabulary) float32 on cpu; anything else is left to torch.

    Returns:
        (rows,) int64 on cpu: the first of equal ones; NaN is the largest.
    """
    is_ours = (
        logits.device.type == "cpu"
        and logits.dtype == torch.float32
        and logits.dim() == 2
        and logits.shape[1] > 0
    )
    if not is_ours:
        return logits.argmax(-1).cpu()
    found: torch.Tensor = _C.arg_max(logits.contiguous())
    return found


def draw(
    logits: torch.Tensor, drawings: Sequence[Drawing], points: Sequence[float]
) -> list[int | None]:
    """Returns a token for each row; what a row draws does not depend on the other rows.

    Tokens are laid side by side in falling order, or by number where all may be drawn; each takes
    as much room as its share, and the one at the point is drawn. No thread is started: torch's
    would run on the cores of a kernel program's team.

    Args:
        logits: (rows, vocabulary) float32 on cpu, -inf for what may not be drawn. Not changed.
        drawings: for each row.
        points: for each row, 0 to 1, exclusive.

    Returns:
        For each row a token; None where a logit is NaN or +inf, or all are -inf.
    """
    found = _C.draw(
        logits.contiguous(),
        [one.temperature for one in drawings],
        [one.top_k for one in drawings],
        [one.top_p for one in drawings],
        [one.min_p for one in drawings],
        list(points),
    )
    return [None if token < 0 else token for token in found]
