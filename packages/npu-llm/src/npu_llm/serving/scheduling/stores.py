"""What the scheduler asks of a cache: room for sequences, and steps that read pieces of them."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Protocol

import torch

from npu_llm.serving.scheduling.sequence import Sequence

__all__ = ["Piece", "SequenceStore", "Usage"]


@dataclass(frozen=True)
class Piece:
    """The next tokens of a sequence, which one step reads.

    Attributes:
        sequence: whose.
        count: how many.
    """

    sequence: Sequence
    count: int

    @property
    def is_last(self) -> bool:
        """Whether nothing is left to read, so that the next token can be chosen."""
        return self.count == self.sequence.pending


@dataclass(frozen=True)
class Usage:
    """How much of a cache is in use.

    Attributes:
        used: share of its room that running sequences hold, 0.0 to 1.0.
        kept: share that only beginnings for later requests hold.
    """

    used: float
    kept: float


class SequenceStore(Protocol):
    """Where sequences' keys and values are."""

    @property
    def most_sequences(self) -> int | None:
        """How many sequences can run at once; None for no bound."""

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens has room if it is alone."""

    def begin(self, sequence: Sequence, *, spare: int) -> bool:
        """Makes room for all tokens of a sequence, and sets how many of them are already there.

        Args:
            sequence: it holds nothing yet.
            spare: how many sequences shall still find room for their next token.

        Returns:
            False if there is no room; nothing has changed then.
        """

    def grow(self, sequence: Sequence) -> bool:
        """Makes room for the tokens that are to be read; False if there is none."""

    def run(self, pieces: Several[Piece]) -> torch.Tensor:
        """Reads pieces of different sequences in one step.

        Returns:
            logits (last, vocabulary) float32, for the pieces that are the last ones, in order.
        """

    def end(self, sequence: Sequence) -> None:
        """Gives back a sequence's room; what it holds may be kept for others."""

    def clear(self) -> None:
        """Gives back what is kept for later requests; no sequence has room any more."""

    def usage(self) -> Usage:
        """Returns how much is in use."""
