"""The KV cache as transformers' generate() sees it: a handle on one session of the program.

Keys and values stay inside the program; what is here is how many there are, and in which order the
next step must read them. Running the steps is npu_llm.model's work.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache

from npu_llm.errors import OptionError
from npu_runtime import Session

__all__ = ["SessionCache"]


class SessionCache(Cache):  # type: ignore[misc]
    """The cache of one generation.

    Attributes:
        session: the program's session that holds keys and values; see npu_runtime.Program.session.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(layers=[])
        self.session = session
        self._length = 0
        self._batch = 0  # rows that the program holds
        self._rows: torch.Tensor | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens that the cache holds, padding counted."""
        return self._length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Always -1: the cache grows."""
        return -1

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[int, int]:
        """Length and offset of the keys that a step of query_length tokens reads."""
        return self._length + int(query_length), 0

    def next_rows(self, batch: int) -> torch.Tensor:
        """Which of the cache's rows each row of the next step continues.

        Args:
            batch: rows of the next step.

        Returns:
            beam_idx: (batch,) int32 on cpu.
        """
        if self._rows is None and (self._length == 0 or batch == self._batch):
            return torch.arange(batch, dtype=torch.int32)
        if self._rows is None or self._rows.shape[0] != batch:
            held = self._batch if self._rows is None else self._rows.shape[0]
            raise self._wrong_rows(f"a step of {batch} rows for a cache of {held}")
        return self._rows

    def advance(self, batch: int, tokens: int) -> None:
        """Records that a step of this batch size has put tokens into the cache."""
        self._batch = batch
        self._length += tokens
        self._rows = None

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Has row i of the next step continue row beam_idx[i], as beam search wants.

        Raises:
            OptionError: [cache-rows] for a row that the cache does not have.
        """
        chosen = beam_idx.to("cpu", torch.int32).contiguous()
        held = self._batch if self._rows is None else self._rows.shape[0]
        if chosen.dim() != 1 or bool(((chosen < 0) | (chosen >= held)).any()):
            raise self._wrong_rows(f"rows {chosen.tolist()} of a cache of {held}")
        self._rows = chosen if self._rows is None else self._rows[chosen.long()]

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the given rows only."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Continues each row several times."""
        held = self._batch if self._rows is None else self._rows.shape[0]
        self.reorder_cache(torch.arange(held).repeat_interleave(repeats))

    def reset(self) -> None:
        """Forgets everything."""
        self.session.reset()
        self._length = self._batch = 0
        self._rows = None

    @property
    def is_croppable(self) -> bool:
        """False: what a program holds can be forgotten as a whole only."""
        return False

    @property
    def is_initialized(self) -> bool:
        """Whether the cache holds anything."""
        return self._length > 0

    def crop(self, tokens_to_remove: int) -> None:
        """Not possible; see is_croppable."""
        self._refuse("crop")

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """Not possible: keys and values are written inside the program."""
        self._refuse("update")

    def _wrong_rows(self, received: str) -> OptionError:
        return OptionError(
            f"SessionCache: a step continues rows that the cache holds; got {received}. Keep the "
            "batch size, or call reorder_cache with the row of each.",
            code="cache-rows",
        )

    def _refuse(self, what: str) -> NoReturn:
        raise OptionError(
            f"SessionCache.{what}: keys and values live inside the compiled program, which cannot "
            "give them back. Start from a new cache: leave past_key_values away.",
            code="cache-in-program",
        )
