"""Scheduler: selects the sequences and tokens of each step.

First come, first served. A step contains the next token of every decoding sequence and, within its
budget, chunks of the admitted prompts. If the cache has no room for a next token, the last sequence
is preempted: it returns to its place in the queue, and is prefilled again.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from npu_llm.engine.kv_store import KVStore, common_length
from npu_llm.engine.sequence import Chunk, Sequence
from npu_ops.kernel_programs.program import BLOCK_SLOTS

__all__ = ["Scheduler"]


class Scheduler:
    """The sequences of one model.

    Attributes:
        waiting: waiting sequences in order of arrival.
        running: sequences with room in the cache, in order of arrival.
        num_preemptions: preemptions since the start.
    """

    def __init__(self, store: KVStore, *, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        """Starts without sequences.

        Args:
            store: the cache.
            max_num_batched_tokens: maximum number of tokens of a step.
            max_num_seqs: maximum number of running sequences.
        """
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._store = store
        self._max_num_batched_tokens = max_num_batched_tokens
        bound = store.max_num_seqs
        self._max_num_seqs = max_num_seqs if bound is None else min(bound, max_num_seqs)

    def add(self, sequence: Sequence) -> None:
        """Adds a waiting sequence, in order of arrival."""
        bisect.insort(self.waiting, sequence, key=lambda one: one.seq_id)

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence, and frees its room."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._store.free(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> list[Chunk]:
        """Returns the chunks of the next step.

        The list is empty if there is nothing to do, or if `stuck` does not fit even alone.
        """
        chunks = self._decoding()
        budget = self._max_num_batched_tokens - len(chunks)
        for sequence in self.running:
            if budget and not sequence.is_decoding:
                budget -= self._add_chunk(chunks, sequence, budget)
        while budget and self._admit(chunks):
            budget -= self._add_chunk(chunks, self.running[-1], budget)
            # A preempted sequence may have arrived before running ones.
            self.running.sort(key=lambda one: one.seq_id)
        return chunks

    @property
    def stuck(self) -> Sequence | None:
        """The sequence that does not fit even alone, if this caused an empty step."""
        return next(iter(self.running or self.waiting), None)

    @staticmethod
    def _add_chunk(chunks: list[Chunk], sequence: Sequence, budget: int) -> int:
        count = min(budget, sequence.num_pending)
        chunks.append(Chunk(sequence, count))
        return count

    def _decoding(self) -> list[Chunk]:
        """Returns a chunk for each decoding sequence, after making room for its token."""
        chunks: list[Chunk] = []
        for sequence in list(self.running):
            if sequence not in self.running or not sequence.is_decoding:
                continue
            while not self._store.append_slots(sequence):
                last = self.running[-1]
                if len(self.running) == 1:
                    return chunks
                self._preempt(last)
                if last is sequence:
                    break
            else:
                chunks.append(Chunk(sequence, 1))
        return chunks

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self.remove(sequence)
        sequence.num_computed = 0
        self.add(sequence)

    def _admit(self, chunks: Iterable[Chunk]) -> bool:
        """Admits the next sequence; False if none waits, fits, or should run now."""
        if not self.waiting or len(self.running) >= self._max_num_seqs:
            return False
        sequence = self.waiting[0]
        if any(_shares_more(sequence, chunk) for chunk in chunks):
            return False  # the next step finds this step's blocks of another sequence in the cache
        if not self._store.allocate(sequence, reserved=len(self.running)):
            return False
        del self.waiting[0]
        self.running.append(sequence)
        if not sequence.has_started:
            sequence.has_started = True
            sequence.num_cached_tokens = sequence.num_computed
        return True


def _shares_more(sequence: Sequence, chunk: Chunk) -> bool:
    """Whether a step is about to compute a full block of another sequence's prefix."""
    other = chunk.sequence
    if chunk.num_tokens < 2 or sequence.cache_salt != other.cache_salt or sequence.scores_prompt:
        return False
    # The last token of a prompt is always computed, so it is not part of the shared prefix.
    alike = common_length(sequence.token_ids, other.token_ids)
    alike = min(alike, len(sequence.token_ids) - 1)
    known = other.num_computed // BLOCK_SLOTS
    after = (other.num_computed + chunk.num_tokens) // BLOCK_SLOTS
    return min(alike // BLOCK_SLOTS, after) > known
