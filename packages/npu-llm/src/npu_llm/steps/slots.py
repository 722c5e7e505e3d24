"""Which token each slot of a KV cache holds, for caches that can hide a slot but not move it.

A slot is a place in the cache's memory; a position is the number of the token that it holds.
Cutting a cache hides slots, and the next tokens go behind them. The inputs that tell a step so
depend on the model's relocation (see npu_llm.capture.relocation).
"""

from __future__ import annotations

from typing import Literal

import torch

__all__ = ["Relocation", "Slots"]

# How a program learns which slots count: from an input with each slot's position, or only from
# zeros in its mask; None if it takes every slot for the token of the same number.
Relocation = Literal["positions", "mask"] | None

_HIDDEN = -1


class Slots:
    """The slots of one cache; the same for all rows of a batch.

    Attributes:
        held: slots in use, including hidden ones.
        length: tokens that count.
    """

    def __init__(self) -> None:
        self.held = 0
        self.length = 0
        # Set once something was hidden: until then slot and position are the same number.
        self._positions: torch.Tensor | None = None

    @property
    def hidden(self) -> int:
        """How many slots in use are hidden."""
        return self.held - self.length

    def append(self, tokens: int) -> None:
        """Records that a step has filled the next slots with the next tokens."""
        if self._positions is not None:
            new = torch.arange(self.length, self.length + tokens)
            self._positions = torch.cat([self._positions, new])
        self.held += tokens
        self.length += tokens

    def crop(self, length: int) -> None:
        """Hides all tokens but the first `length`, which must not exceed their number."""
        if length == self.length:
            return
        if self._positions is None:
            self._positions = torch.arange(self.held)
        self._positions[self._positions >= length] = _HIDDEN
        self.length = length

    def key_positions(self, tokens: int) -> torch.Tensor:
        """Returns each slot's position once a step of `tokens` tokens has added its own.

        A hidden slot gets the last position of all, which no query of the step reaches and for
        which the result of `mask` is 0.

        Returns:
            (held + tokens,) int64 on cpu.
        """
        count = self.held + tokens
        if self._positions is None:
            return torch.arange(count)
        known = self._positions.masked_fill(self._positions == _HIDDEN, count - 1)
        return torch.cat([known, torch.arange(self.length, self.length + tokens)])

    def mask(self, mask: torch.Tensor, relocation: Relocation) -> torch.Tensor:
        """Returns a step's mask for the slots, given its mask for the tokens.

        Args:
            mask: (batch, length + tokens) int64, by position.
            relocation: how the program learns which slots count.

        Returns:
            (batch, held + tokens) int64: by position, followed by zeros, for "positions"; by slot
            for "mask".
        """
        if self._positions is None or self.hidden == 0:
            return mask
        tokens = mask.shape[1] - self.length
        if relocation == "positions":
            return torch.nn.functional.pad(mask, (0, self.hidden))
        by_slot = mask.new_zeros(mask.shape[0], self.held + tokens)
        by_slot[:, : self.held][:, self._positions != _HIDDEN] = mask[:, : self.length]
        by_slot[:, self.held :] = mask[:, self.length :]
        return by_slot
