"""KV-cache storage: blocks that many sequences share, or one cache for one sequence at a time."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npu_llm.engine.radix_cache import RadixCache
from npu_llm.engine.sampler import Logits
from npu_llm.engine.sequence import Chunk, Sequence
from npu_llm.errors import ContextError
from npu_llm.kv_cache.blocks import BlockPool, BlockTable, build_rows, run_rows
from npu_ops.kernel_programs.native import is_torch_loaded
from npu_ops.kernel_programs.program import BLOCK_SLOTS
from npu_runtime import observe

if TYPE_CHECKING:
    import torch

    from npu_llm.generation.entry_model import EntryModel
    from npu_llm.kv_cache.cache import StepCache

__all__ = ["CacheUsage", "KVStore", "PagedStore", "SequentialStore", "common_length"]

# Removed tokens may still take memory and time in a cache. Once they outnumber both this and the
# kept tokens, it costs less to read those again into a new cache.
_HIDDEN_TOKENS = 256


@dataclass(frozen=True)
class CacheUsage:
    """Utilization of a cache.

    Attributes:
        used: share of its capacity in use by running sequences, 0.0 to 1.0.
        cached: share in use by cached prefixes only.
    """

    used: float
    cached: float


class KVStore(ABC):
    """Keys and values of sequences, and the steps that extend them.

    Attributes:
        max_num_seqs: maximum number of running sequences; None for no limit.
    """

    max_num_seqs: int | None = None

    @abstractmethod
    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence of this length fits if it is alone."""

    @abstractmethod
    def allocate(self, sequence: Sequence, *, reserved: int) -> bool:
        """Allocates room for all tokens of a sequence, and sets its num_computed.

        Args:
            sequence: one without room.
            reserved: number of sequences that still need room for their next token.

        Returns:
            False if there is no room; then nothing has changed.
        """

    @abstractmethod
    def append_slots(self, sequence: Sequence) -> bool:
        """Allocates room for the pending tokens; False if there is none."""

    @abstractmethod
    def run(self, chunks: Several[Chunk]) -> Logits:
        """Runs chunks of different sequences in one step.

        Returns:
            logits (rows, vocabulary) float32: num_logits of each chunk, in the order of the chunks.
        """

    @abstractmethod
    def free(self, sequence: Sequence) -> None:
        """Frees a sequence's room; its prefix may stay cached."""

    @abstractmethod
    def clear(self) -> None:
        """Drops all cached prefixes; no sequence has room."""

    @abstractmethod
    def usage(self) -> CacheUsage:
        """Returns the utilization of the cache."""


class PagedStore(KVStore):
    """The blocks of a kernel program, for any number of sequences in one step."""

    def __init__(self, pool: BlockPool, *, max_blocks: int | None = None) -> None:
        """Stores a program's blocks.

        Args:
            pool: the blocks; the store limits their number.
            max_blocks: maximum number of blocks; None for all of the pool.
        """
        if max_blocks is not None:
            pool.most = max_blocks if pool.most is None else min(pool.most, max_blocks)
        self.prefixes = RadixCache(pool)
        self._pool = pool
        self._tables: dict[int, BlockTable] = {}

    def fits(self, num_tokens: int) -> bool:
        """Whether the blocks can hold this many tokens."""
        return self._pool.most is None or _num_blocks(num_tokens) <= self._pool.most

    def allocate(self, sequence: Sequence, *, reserved: int) -> bool:
        """See KVStore.allocate."""
        table = BlockTable(self._pool)
        # The last token is always read, for its logits.
        if not sequence.scores_prompt:
            table.blocks += self.prefixes.match(sequence.token_ids[:-1], sequence.cache_salt)
        table.slots = len(table.blocks) * BLOCK_SLOTS
        needed = _num_blocks(len(sequence.token_ids)) - len(table.blocks)
        count = len(sequence.token_ids) - table.slots
        if not self._has_free(needed + reserved) or not self._make_room(table, count):
            table.crop(0)
            return False
        sequence.num_computed = table.slots
        self._tables[sequence.seq_id] = table
        return True

    def append_slots(self, sequence: Sequence) -> bool:
        """See KVStore.append_slots."""
        return self._make_room(self._tables[sequence.seq_id], sequence.num_pending)

    def run(self, chunks: Several[Chunk]) -> Logits:
        """See KVStore.run."""
        tables = [self._tables[chunk.sequence.seq_id] for chunk in chunks]
        counts = [chunk.num_tokens for chunk in chunks]
        tokens: list[int] = []
        kept: list[int] = []
        for chunk in chunks:
            start = chunk.sequence.num_computed
            tokens += chunk.sequence.token_ids[start : start + chunk.num_tokens]
            kept += range(len(tokens) - chunk.num_logits, len(tokens))
        ids, places = (np.array(one, np.int64) for one in (tokens, kept))
        logits: Logits = run_rows(self._pool.store, build_rows(tables, counts, ids, kept=places))
        for chunk, table in zip(chunks, tables, strict=True):
            table.slots += chunk.num_tokens
            if chunk.sequence.num_computed // BLOCK_SLOTS != table.slots // BLOCK_SLOTS:
                known = chunk.sequence.token_ids[: table.slots]
                self.prefixes.insert(known, table.blocks, chunk.sequence.cache_salt)
        return logits

    def free(self, sequence: Sequence) -> None:
        """Releases a sequence's blocks; full ones stay cached until they are evicted."""
        self._tables.pop(sequence.seq_id).crop(0)

    def clear(self) -> None:
        """Releases the cached blocks."""
        self.prefixes.clear()

    def usage(self) -> CacheUsage:
        """Returns the shares of the maximum number of blocks."""
        total = self._pool.most or max(self._pool.used, 1)
        cached = self.prefixes.num_evictable()
        return CacheUsage((self._pool.used - cached) / total, cached / total)

    def _has_free(self, blocks: int) -> bool:
        if self._pool.most is None:
            return True
        return self._pool.most - self._pool.used + self.prefixes.num_evictable() >= blocks

    def _make_room(self, table: BlockTable, count: int) -> bool:
        while True:
            try:
                table.make_room(count)
            except ContextError:
                if not self.prefixes.evict():
                    table.crop(table.slots)
                    return False
            else:
                return True


class SequentialStore(KVStore):
    """A model's cache for one sequence at a time, reused up to the first token that differs.

    Attributes:
        cached_tokens: the tokens that the cache holds.
        num_reused: length of the last prompt's prefix that was in the cache.
    """

    max_num_seqs = 1

    def __init__(self, model: EntryModel) -> None:
        self.cached_tokens: list[int] = []
        self.num_reused = 0
        self._model = model
        self._cache: StepCache | None = None
        self._cache_salt: str | None = None
        self._is_running = False

    def fits(self, num_tokens: int) -> bool:
        """True: the model's context is the only limit."""
        return True

    def allocate(self, sequence: Sequence, *, reserved: int) -> bool:
        """See KVStore.allocate."""
        if self._is_running:
            return False
        if sequence.scores_prompt or sequence.cache_salt != self._cache_salt:
            self.clear()
        self._cache_salt = sequence.cache_salt
        self.lend(sequence.token_ids)
        sequence.num_computed = len(self.cached_tokens)
        self._is_running = True
        return True

    def append_slots(self, sequence: Sequence) -> bool:
        """True: the cache grows automatically."""
        return True

    def run(self, chunks: Several[Chunk]) -> Logits:
        """See KVStore.run."""
        (chunk,) = chunks
        past, count = chunk.sequence.num_computed, chunk.num_tokens
        phase = "decode" if past else "prefill"
        assert self._cache is not None, "the sequence has room"
        tokens = chunk.sequence.token_ids[past : past + count]
        with (
            _without_gradients(),
            observe.span(phase, f"{phase} {count} tokens", batch=1, tokens=count, past=past),
        ):
            found = self._cache.append(tokens, num_logits=max(chunk.num_logits, 1))
            logits: Logits = np.asarray(found)
        return logits if chunk.num_logits else logits[:0]

    def free(self, sequence: Sequence) -> None:
        """Keeps the sequence for a request with the same prefix."""
        self._is_running = False
        self.give_back(sequence.token_ids[: sequence.num_computed])

    def clear(self) -> None:
        """Drops the cache."""
        self.cached_tokens, self._cache = [], None

    def usage(self) -> CacheUsage:
        """Returns 1.0 while a sequence runs."""
        return CacheUsage(float(self._is_running), 0.0)

    # For steps that run outside the engine, and for saved sessions

    def lend(self, prompt: Several[int]) -> StepCache:
        """Returns a cache with a proper prefix of a prompt, which becomes cached_tokens."""
        if self._cache is not None and not self._model.continues(self._cache):
            self.clear()  # other adapters are in use
        # The last token is always read, for its logits.
        self._shorten(min(common_length(self.cached_tokens, prompt), len(prompt) - 1))
        hidden = 0 if self._cache is None else self._cache.hidden_tokens
        if hidden > max(_HIDDEN_TOKENS, len(self.cached_tokens)):
            self.clear()
        if self._cache is None:
            self._cache = self._model.new_cache()
        self.num_reused = len(self.cached_tokens)
        return self._cache

    def give_back(self, tokens: Several[int]) -> None:
        """Records the tokens in a lent cache; only the first ones if there are more."""
        if self._cache is None or self._cache.is_broken:
            self.clear()
            return
        # Steps with rejected drafts leave tokens that are not part of the answer.
        known = min(self._cache.get_seq_length(), len(tokens))
        self.cached_tokens = list(tokens[:known])
        self._shorten(known)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the cache's content; empty if it cannot be copied or is empty."""
        return self._cache.tensors() if self._cache is not None and self.cached_tokens else {}

    def restore(self, tokens: Several[int], tensors: Mapping[str, torch.Tensor]) -> None:
        """Restores the content for some tokens; without content it prefills them."""
        self.clear()
        if not tokens:
            return
        cache = self._model.new_cache()
        if tensors:
            cache.restore(tensors)
        else:
            with (
                _without_gradients(),
                observe.span(
                    "prefill", f"prefill {len(tokens)} tokens", batch=1, tokens=len(tokens), past=0
                ),
            ):
                cache.append(tokens)
        self.cached_tokens, self._cache = list(tokens), cache

    def _shorten(self, length: int) -> None:
        """Keeps the first tokens; drops the cache if it cannot be cropped."""
        if self._cache is None or length == self._cache.get_seq_length():
            return
        if length and self._cache.is_croppable:
            self._cache.crop(length)
            del self.cached_tokens[length:]
        else:
            self.clear()


def common_length(one: Several[int], other: Several[int]) -> int:
    """Returns the length of the longest common prefix of two sequences."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(index for index in range(shorter) if one[index] != other[index])


def _without_gradients() -> contextlib.AbstractContextManager[None]:
    """Returns torch's inference mode; a no-op in a process without torch."""
    if not is_torch_loaded():
        return contextlib.nullcontext()
    import torch

    return torch.inference_mode()


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SLOTS)
