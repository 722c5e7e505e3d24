"""Draws a token for each of several answers: the arithmetic over the vocabulary in common calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from npu_llm.serving.scheduling.request import Sampling

__all__ = ["draw"]

_Numbers = np.ndarray[Any, np.dtype[Any]]

# Shares of the most likely token's, down to which tokens are looked at: sorting all of 49,152 takes
# a millisecond or more, finding those above one of these 0.02 ms (2026-11-24). The last has all.
_FLOORS = (1e-2, 1e-3, 1e-4, 1e-5, 0.0)
_PART = 256  # tokens whose shares are added first; adding one by one takes ten times as long


def draw(
    scores: torch.Tensor, samplings: Sequence[Sampling], points: Sequence[float]
) -> list[int | None]:
    """Returns a token for each row; what a row draws does not depend on the other rows.

    Tokens are laid side by side in falling order, or by number where all may be drawn; each takes
    as much room as its share, and the one at the point is drawn.

    Args:
        scores: (rows, vocabulary) float32, logits with bias and penalties; -inf for what may not
            be drawn. Not changed.
        samplings: for each row, with a temperature above 0.
        points: for each row, 0 to 1, exclusive.

    Returns:
        For each row a token; None where a score is NaN or +inf, or all are -inf.
    """
    weights = scores / torch.tensor([[one.temperature] for one in samplings])
    weights = weights.sub_(weights.amax(-1, keepdim=True)).exp_()  # the most likely one has 1
    totals = weights.sum(-1, dtype=torch.float64).tolist()
    rows = zip(weights.numpy(), samplings, totals, points, strict=True)
    # False for NaN.
    return [_one(row, how, total, point) if total > 0 else None for row, how, total, point in rows]


def _one(weights: _Numbers, sampling: Sampling, total: float, point: float) -> int:
    if not sampling.top_k and sampling.top_p >= 1.0 and not sampling.min_p:
        return _at(weights, point)
    places = _likely(weights, sampling, total)
    values = weights[places]
    order = np.argsort(-values, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
        total = float(values[order].sum(dtype=np.float64))
    values, places = values[order], places[order]
    before = np.cumsum(values, dtype=np.float64) - values
    kept = (before < sampling.top_p * total) & (values >= sampling.min_p)
    kept[0] = True
    return int(places[kept][_at(values[kept], point)])


def _likely(weights: _Numbers, sampling: Sampling, total: float) -> _Numbers:
    """Returns tokens by number: all that may be drawn, and some more."""
    places: _Numbers = np.empty(0, np.intp)
    for floor in _FLOORS:
        places = np.flatnonzero(weights >= floor)
        if sampling.top_k:
            is_enough = len(places) >= sampling.top_k
        else:
            share = float(weights[places].sum(dtype=np.float64)) / total
            is_enough = sampling.top_p < 1.0 and share >= sampling.top_p
        if is_enough or floor <= sampling.min_p:
            break
    return places


def _at(weights: _Numbers, point: float) -> int:
    """Returns the place at a point from 0 to 1, where each has room by its weight."""
    sums = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _PART), dtype=np.float64))
    sought = point * sums[-1]
    part = min(int(np.searchsorted(sums, sought, side="right")), len(sums) - 1)
    sought -= sums[part - 1] if part else 0.0
    inner = np.cumsum(weights[part * _PART : (part + 1) * _PART], dtype=np.float64)
    index = part * _PART + min(int(np.searchsorted(inner, sought, side="right")), len(inner) - 1)
    while index and not weights[index]:  # rounding may lead to one without a share
        index -= 1
    return index
