"""SequenceCache: the KV cache of one sequence in blocks of a kernel program; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npu_llm.kv_cache.blocks import BlockPool, BlockTable, build_rows, run_rows

__all__ = ["SequenceCache"]


class SequenceCache:
    """What npu_llm.engine.kv_store.SequentialStore needs of a npu_llm.kv_cache.cache.StepCache.

    Attributes:
        made_by: the model that made it.
    """

    is_croppable = True
    is_broken = False
    hidden_tokens = 0

    def __init__(self, pool: BlockPool, made_by: Any) -> None:
        self.made_by = made_by
        self._pool = pool
        self._table = BlockTable(pool)

    def get_seq_length(self) -> int:
        """Returns how many tokens the cache holds."""
        return self._table.slots

    def append(self, tokens: Sequence[int], *, num_logits: int = 1) -> np.ndarray[Any, Any]:
        """Runs a step on new tokens; a step that fails leaves the cache as it was.

        Returns:
            logits (num_logits, vocabulary) float32 of the last tokens.

        Raises:
            ContextError: [cache-blocks] if there is no room for the tokens.
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
        """Returns nothing: a restored session reads its tokens again."""
        return {}
