"""What the caches of both pipelines share: transformers' view of them, and the order of their rows.

`run_step` runs a step on any of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache

from npu_llm.errors import OptionError
from npu_runtime import observe

__all__ = ["StepCache", "run_step"]


class StepCache(Cache):  # type: ignore[misc]
    """The cache of one generation: a batch of sequences, each with the same number of tokens."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._batch = 0  # rows that are held
        self._rows: torch.Tensor | None = None  # which of them the next step continues

    # What each pipeline does in its own way

    @abstractmethod
    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens that the cache holds, padding counted."""

    @abstractmethod
    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step, which adds its tokens to the cache.

        Args:
            values: from npu_llm.steps.step_inputs.
            device: where the logits are to be.

        Returns:
            logits (batch, kept, vocabulary) float32.
        """

    @property
    @abstractmethod
    def is_croppable(self) -> bool:
        """Whether the last tokens can be forgotten alone."""

    @abstractmethod
    def _keep(self, length: int) -> None:
        """Forgets all but the first tokens, fewer than there are."""

    @property
    def hidden_tokens(self) -> int:
        """Places that forgotten tokens still take; a new cache has none."""
        return 0

    def reserve(self, tokens: int) -> None:
        """Makes room for so many tokens at once, where growing by and by would cost time."""

    @property
    def is_broken(self) -> bool:
        """Whether a step was broken off, and nobody knows what the cache holds of it."""
        return False

    def tensors(self) -> dict[str, torch.Tensor]:
        """What the cache holds, for `restore`; empty where it cannot be copied."""
        return {}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes what `tensors` of a cache of the same model gave, where it gave something."""
        raise NotImplementedError

    # What transformers asks

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Always -1: the cache grows."""
        return -1

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[int, int]:
        """Length and offset of the keys that a step of query_length tokens reads."""
        return self.get_seq_length() + int(query_length), 0

    @property
    def is_initialized(self) -> bool:
        """Whether the cache holds anything."""
        return self.get_seq_length() > 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last tokens.

        Args:
            tokens_to_remove: as transformers has it: with a minus, how many to forget; above 0, how
                many to keep; 0 changes nothing. See reset for a cache without tokens.

        Raises:
            OptionError: [not-croppable] where is_croppable says so.
        """
        length = self.get_seq_length()
        kept = tokens_to_remove if tokens_to_remove > 0 else max(length + tokens_to_remove, 0)
        if kept >= length:
            return
        if not self.is_croppable:
            raise OptionError(
                f"{type(self).__name__}.crop: must be a cache whose model can tell its places "
                f"apart; got {kept} of {length} tokens to keep. Start from a new cache: leave "
                "past_key_values away.",
                code="not-croppable",
            )
        self._keep(kept)

    def reset(self) -> None:
        """Forgets everything."""
        self._batch = 0
        self._rows = None

    def next_rows(self, batch: int) -> torch.Tensor:
        """Which of the cache's rows each row of the next step continues.

        Args:
            batch: rows of the next step.

        Returns:
            beam_idx: (batch,) int32 on cpu.
        """
        if self._rows is None and (self._batch == 0 or batch == self._batch):
            return torch.arange(batch, dtype=torch.int32)
        if self._rows is None or self._rows.shape[0] != batch:
            raise self._wrong_rows(f"a step of {batch} rows for a cache of {self._held_rows}")
        return self._rows

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Has row i of the next step continue row beam_idx[i], as beam search wants.

        Raises:
            OptionError: [cache-rows] for a row that the cache does not have.
        """
        chosen = beam_idx.to("cpu", torch.int32).contiguous()
        held = self._held_rows
        if chosen.dim() != 1 or bool(((chosen < 0) | (chosen >= held)).any()):
            raise self._wrong_rows(f"rows {chosen.tolist()} of a cache of {held}")
        self._rows = chosen if self._rows is None else self._rows[chosen.long()]

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the given rows only."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Continues each row several times."""
        self.reorder_cache(torch.arange(self._held_rows).repeat_interleave(repeats))

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """Not possible: keys and values are written by the step's program."""
        raise OptionError(
            f"{type(self).__name__}.update: keys and values are written by the compiled program "
            "alone. Start from a new cache: leave past_key_values away.",
            code="cache-in-program",
        )

    @property
    def _held_rows(self) -> int:
        """Rows that the next step can continue, in the order that was asked for last."""
        return self._batch if self._rows is None else self._rows.shape[0]

    def _wrong_rows(self, received: str) -> OptionError:
        return OptionError(
            f"{type(self).__name__}: a step continues rows that the cache holds; got {received}. "
            "Keep the batch size, or call reorder_cache with the row of each.",
            code="cache-rows",
        )


def run_step(
    cache: StepCache, values: Mapping[str, torch.Tensor], *, past: int, device: str
) -> torch.Tensor:
    """Runs a step of a generation, and emits its span.

    Args:
        cache: holds the tokens so far, and then those of the step as well.
        values: from npu_llm.steps.step_inputs.
        past: tokens so far.
        device: where the logits are to be.

    Returns:
        logits (batch, kept, vocabulary) float32.
    """
    batch, tokens = values["input_ids"].shape
    phase = "decode" if past else "prefill"
    with observe.span(phase, f"{phase} {tokens} tokens", batch=batch, tokens=tokens, past=past):
        return cache.step(values, device)
