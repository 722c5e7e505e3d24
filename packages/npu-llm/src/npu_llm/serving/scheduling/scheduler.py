"""Scheduler: which sequences run, which wait, and which tokens the next step reads.

First come, first served. A step holds the next token of every sequence that answers, and within its
budget pieces of the prompts that were admitted. Where the cache has no room for a next token, the
sequence that came last is put back: it waits in its old place, and is read again.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable

from npu_llm.prompts.chat_prompt import common_length
from npu_llm.serving.scheduling.sequence import Sequence
from npu_llm.serving.scheduling.stores import Piece, SequenceStore
from npu_ops.kernel_programs.program import BLOCK_SLOTS

__all__ = ["Scheduler"]


class Scheduler:
    """The sequences of one model.

    Attributes:
        waiting: in the order in which they came.
        running: those that hold room in the cache, in the order in which they came.
        preemptions: how often a sequence was put back.
    """

    def __init__(self, store: SequenceStore, *, most_rows: int, most_sequences: int) -> None:
        """Starts without sequences.

        Args:
            store: the cache.
            most_rows: how many tokens a step reads at most; more than most_sequences.
            most_sequences: how many sequences run at once.
        """
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._store = store
        self._most_rows = most_rows
        bound = store.most_sequences
        self._most_sequences = most_sequences if bound is None else min(bound, most_sequences)

    def add(self, sequence: Sequence) -> None:
        """Lets a sequence wait, in its place."""
        bisect.insort(self.waiting, sequence, key=lambda one: one.number)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence, and gives back its room."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._store.end(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def next_step(self) -> list[Piece]:
        """Returns what the next step reads; empty if there is nothing to do.

        It is also empty if `stuck` has no room though it is alone.
        """
        pieces = self._answers()
        budget = self._most_rows - len(pieces)
        for sequence in self.running:
            if budget and not _is_answering(sequence):
                count = min(budget, sequence.pending)
                pieces.append(Piece(sequence, count))
                budget -= count
        while budget and self._admit(pieces):
            sequence = self.running[-1]
            count = min(budget, sequence.pending)
            pieces.append(Piece(sequence, count))
            budget -= count
            # A sequence that was put back may have come before others that run.
            self.running.sort(key=lambda one: one.number)
        return pieces

    @property
    def stuck(self) -> Sequence | None:
        """The sequence that has no room though it is alone, if an empty step was due to one."""
        return next(iter(self.running or self.waiting), None)

    def _answers(self) -> list[Piece]:
        """Returns a piece for each sequence that answers, having made room for its token."""
        pieces: list[Piece] = []
        for sequence in list(self.running):
            if sequence not in self.running or not _is_answering(sequence):
                continue
            while not self._store.grow(sequence):
                last = self.running[-1]
                if len(self.running) == 1:
                    return pieces
                self._put_back(last)
                if last is sequence:
                    break
            else:
                pieces.append(Piece(sequence, 1))
        return pieces

    def _put_back(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.remove(sequence)
        sequence.read = 0
        self.add(sequence)

    def _admit(self, pieces: Iterable[Piece]) -> bool:
        """Admits the next sequence; False if none waits, or has room, or should go now."""
        if not self.waiting or len(self.running) >= self._most_sequences:
            return False
        sequence = self.waiting[0]
        if any(_shares_more(sequence, piece) for piece in pieces):
            return False  # what this step reads for another, the next finds in the cache
        if not self._store.begin(sequence, spare=len(self.running)):
            return False
        del self.waiting[0]
        self.running.append(sequence)
        if sequence.started_s is None:
            sequence.started_s = time.perf_counter()
            sequence.cached_tokens = sequence.read
        return True


def _is_answering(sequence: Sequence) -> bool:
    return sequence.pending == 1 and sequence.answered > 0


def _shares_more(sequence: Sequence, piece: Piece) -> bool:
    """Whether a step is about to read a full block of what another sequence begins with."""
    other = piece.sequence
    if piece.count < 2:
        return False
    # The last token of a prompt is always read, so it is not part of what could be shared.
    alike = min(common_length(sequence.tokens, other.tokens), len(sequence.tokens) - 1)
    known, after = other.read // BLOCK_SLOTS, (other.read + piece.count) // BLOCK_SLOTS
    return min(alike // BLOCK_SLOTS, after) > known
