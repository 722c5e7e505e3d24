"""SequenceCache: the KV cache of one sequence in a kernel program's blocks; does not need torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npu_llm.kv_cache.blocks import BlockPool, BlockTable, build_rows, run_rows

__all__ = ["SequenceCache"]


class SequenceCache:
    """The part of npu_llm.kv_cache.cache.StepCache used by engine.kv_store.SequentialStore.

    Attributes:
        made_by: the model that created it.
    """

    is_croppable = True
    is_broken = False
    hidden_tokens = 0

    def __init__(self, pool: BlockPool, made_by: Any) -> None:
        self.made_by = made_by
        self._pool = pool
        self._table = BlockTable(pool)

    def get_seq_length(self) -> int:
        """Returns the number of tokens in the cache."""
        return self._table.slots

    def append(self, tokens: Sequence[int], *, num_logits: int = 1) -> np.ndarray[Any, Any]:
        """Runs a step on new tokens; a failed step leaves the cache unchanged.

        Returns:
            logits (num_logits, vocabulary) float32 of the last tokens.

        Raises:
            ContextError: [cache-blocks] if the tokens do not fit.
        """
        count = len(tokens)
        try:
            self._table.make_room(count)
            rows = build_rows(
                [self._table],
                [count],
                np.array(tokens, np.int64),
                kept=np.arange(count - num_logits, count),
            )
            logits: np.ndarray[Any, Any] = run_rows(self._pool.store, rows)
        except BaseException:
            self._table.crop(self._table.slots)
            raise
        self._table.slots += count
        return logits

    def crop(self, length: int) -> None:
        """Keeps the first tokens."""
        self._table.crop(length)

    def tensors(self) -> dict[str, Any]:
        """Returns an empty result: a restored session reads its tokens again."""
        return {}
