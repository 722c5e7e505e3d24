"""SingleStore: one sequence at a time, for pipelines whose steps do not take several."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any

import torch

from npu_llm.chat.read_tokens import ReadTokens
from npu_llm.serving.scheduling.sequence import Sequence
from npu_llm.serving.scheduling.stores import Piece, Usage

__all__ = ["SingleStore"]


class SingleStore:
    """A model's cache, reused as far as the next prompt begins like the last one."""

    most_sequences: int | None = 1

    def __init__(self, model: Any) -> None:
        self._model = model
        self._read = ReadTokens(model)
        self._is_running = False

    def fits(self, tokens: int) -> bool:
        """True: the model's context is the only bound."""
        return True

    def begin(self, sequence: Sequence, *, spare: int) -> bool:
        """See npu_llm.serving.scheduling.stores.SequenceStore; `spare` does not matter here."""
        if self._is_running:
            return False
        _, sequence.read = self._read.prepare(sequence.tokens)
        self._is_running = True
        return True

    def grow(self, sequence: Sequence) -> bool:
        """True: the cache grows by itself."""
        return True

    def run(self, pieces: Several[Piece]) -> torch.Tensor:
        """Reads a piece; see npu_llm.serving.scheduling.stores.SequenceStore."""
        (piece,) = pieces
        sequence = piece.sequence
        new = torch.tensor([sequence.tokens[sequence.read : sequence.read + piece.count]])
        logits: torch.Tensor = self._model.step(new, self._read.cache, logits_to_keep=1)
        return logits[0] if piece.is_last else logits[0, :0]

    def end(self, sequence: Sequence) -> None:
        """Keeps what was read for a request that begins alike."""
        self._read.settle(sequence.tokens[: sequence.read], ())
        self._is_running = False

    def clear(self) -> None:
        """Drops the cache."""
        self._read.forget()

    def usage(self) -> Usage:
        """Returns 1.0 in use while a sequence runs, and nothing else."""
        return Usage(float(self._is_running), 0.0)
