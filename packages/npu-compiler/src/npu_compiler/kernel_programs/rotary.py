"""Rotary embedding, found by computing it: for each position it is linear in a head's values.

y[i] = own[p, i] x[i] + other[p, i] x[partner[i]], whatever calls say so: halves, interleaved
pairs, a part of the head only, any scaling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Rotation", "find_rotation"]

_CHUNK = 512  # positions computed at once
_PROBED = (3, 7)  # positions at which partners are looked for

# x (batch, tokens, width), positions (batch, tokens), tokens in the cache
# -> (batch, tokens, width)
Compute = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True)
class Rotation:
    """Tables of a rotary embedding.

    Attributes:
        own: (positions, size) float32.
        other: (positions, size) float32.
        partner: (size,) int32.
    """

    own: torch.Tensor
    other: torch.Tensor
    partner: torch.Tensor


def find_rotation(compute: Compute, *, heads: int, size: int, positions: int) -> Rotation | None:
    """Returns the rotation that a function is for every head; None if it is none.

    Args:
        compute: the function.
        heads: how many heads a row has.
        size: of a head.
        positions: how many there are.
    """
    partner = _partners(compute, heads, size, positions)
    if partner is None:
        return None
    index = torch.arange(size)
    is_first = (index <= partner).float()
    own, other = torch.empty(positions, size), torch.empty(positions, size)
    for start in range(0, positions, _CHUNK):
        at = torch.arange(start, min(start + _CHUNK, positions))[None]
        first = compute(is_first.repeat(heads).expand(1, at.shape[1], -1), at, 0)[0, :, :size]
        last = compute((1 - is_first).repeat(heads).expand(1, at.shape[1], -1), at, 0)[0, :, :size]
        chosen = is_first.bool()
        own[at[0]] = torch.where(chosen, first, last)
        other[at[0]] = torch.where(chosen, last, first)
    other[:, partner == index] = 0
    found = Rotation(own, other, partner.to(torch.int32))
    return found if _holds(found, compute, heads, size, positions) else None


def _partners(compute: Compute, heads: int, size: int, positions: int) -> torch.Tensor | None:
    """Returns which other channel each channel takes from: (size,); its own for none."""
    units = torch.eye(size).repeat(1, heads)[:, None]
    takes = torch.zeros(size, size, dtype=torch.bool)
    for place in _PROBED:
        at = torch.full((size, 1), min(place, positions - 1))
        takes |= compute(units, at, 0)[:, 0, :size].t() != 0
    index = torch.arange(size)
    takes[index, index] = False
    if int(takes.sum(1).max()) > 1:
        return None
    partner = torch.where(takes.any(1), takes.int().argmax(1), index)
    return partner if torch.equal(partner[partner], index) else None


def _holds(rotation: Rotation, compute: Compute, heads: int, size: int, positions: int) -> bool:
    """Whether the rotation gives what the function does, for random values and lengths."""
    generator = torch.Generator().manual_seed(0)
    for past in (0, 1, max(0, positions - 5)):
        x = torch.randn(2, 5, heads * size, generator=generator)
        at = torch.randint(0, positions, (2, 5), generator=generator)
        by_head = x.view(2, 5, heads, size)
        own, other = rotation.own[at][:, :, None], rotation.other[at][:, :, None]
        expected = own * by_head + other * by_head[..., rotation.partner.long()]
        if not torch.allclose(compute(x, at, past), expected.flatten(2), atol=1e-5, rtol=1e-5):
            return False
    return True
