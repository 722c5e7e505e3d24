"""What the caches of both pipelines share: transformers' view of them, and the order of their rows.

`run_step` runs a step on any of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from npu_llm.errors import OptionError
from npu_runtime import observe

__all__ = ["StepCache", "join_transformers", "run_step"]


class _Base:
    """Stands where transformers' Cache stands once that is imported, see join_transformers."""

    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers


class StepCache(_Base):
    """The cache of one generation: a batch of sequences with the same number of tokens.

    Attributes:
        made_by: the pipeline of the model that made it, with the adapters that were in use.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.made_by: Any = None
        self._batch = 0  # rows that it holds
        self._rows: torch.Tensor | None = None  # which of them the next step continues

    # What each pipeline does in its own way

    @abstractmethod
    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns how many tokens the cache holds, including padding."""

    @abstractmethod
    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step, which adds its tokens to the cache.

        Args:
            values: from npu_llm.steps.step_inputs.
            device: where to return the logits.

        Returns:
            logits (batch, kept, vocabulary) float32.
        """

    @property
    @abstractmethod
    def is_croppable(self) -> bool:
        """Whether the last tokens can be forgotten without the others."""

    @abstractmethod
    def _keep(self, length: int) -> None:
        """Keeps the first tokens, fewer than there are, and forgets the others."""

    @property
    def is_linear(self) -> list[bool]:
        """Of each layer, whether its length says nothing of the tokens that it holds: of none."""
        return [False]

    @property
    def hidden_tokens(self) -> int:
        """How many places forgotten tokens still take; a new cache has none."""
        return 0

    def reserve(self, tokens: int) -> None:
        """Makes room for this many tokens at once, if growing step by step would cost time."""

    @property
    def is_broken(self) -> bool:
        """Whether a step was interrupted, so that the cache's contents are unknown."""
        return False

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns what the cache holds, for `restore`; empty if it cannot be copied."""
        return {}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads what `tensors` of a cache of the same model returned, if it was not empty."""
        raise NotImplementedError

    # What transformers asks

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Always -1: the cache grows."""
        return -1

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[int, int]:
        """Returns length and offset of the keys that a step of query_length tokens reads."""
        return self.get_seq_length() + int(query_length), 0

    @property
    def is_initialized(self) -> bool:
        """Whether the cache holds anything."""
        return self.get_seq_length() > 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last tokens.

        Args:
            tokens_to_remove: as in transformers: if negative, how many to forget; if positive, how
                many to keep; 0 changes nothing. See `reset` to forget all.

        Raises:
            OptionError: [not-croppable] if is_croppable is False.
        """
        length = self.get_seq_length()
        kept = tokens_to_remove if tokens_to_remove > 0 else max(length + tokens_to_remove, 0)
        if kept >= length:
            return
        if not self.is_croppable:
            raise OptionError(
                f"{type(self).__name__}.crop: must be called on a cache that can be cut "
                f"(is_croppable); got one that cannot, with {kept} of {length} tokens to keep. "
                "Start from a new cache: omit past_key_values.",
                code="not-croppable",
            )
        self._keep(kept)

    def reset(self) -> None:
        """Forgets everything."""
        self._batch = 0
        self._rows = None

    def next_rows(self, batch: int) -> torch.Tensor:
        """Returns which of the cache's rows each row of the next step continues.

        Args:
            batch: how many rows the next step has.

        Returns:
            beam_idx: (batch,) int32 on cpu.
        """
        if self._rows is None and (self._batch == 0 or batch == self._batch):
            return torch.arange(batch, dtype=torch.int32)
        if self._rows is None or self._rows.shape[0] != batch:
            raise self._wrong_rows(f"a step of {batch} rows for a cache of {self._held_rows}")
        return self._rows

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Makes row i of the next step continue row beam_idx[i], as beam search needs.

        Raises:
            OptionError: [cache-rows] for a row that the cache does not have.
        """
        chosen = beam_idx.to("cpu", torch.int32).contiguous()
        held = self._held_rows
        if chosen.dim() != 1 or bool(((chosen < 0) | (chosen >= held)).any()):
            raise self._wrong_rows(f"rows {chosen.tolist()} of a cache of {held}")
        self._rows = chosen if self._rows is None else self._rows[chosen.long()]

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps only the given rows."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each row."""
        self.reorder_cache(torch.arange(self._held_rows).repeat_interleave(repeats))

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: only the step's program writes keys and values."""
        raise OptionError(
            f"{type(self).__name__}.update: must not be called; only the compiled program writes "
            "keys and values. Start from a new cache: omit past_key_values.",
            code="cache-in-program",
        )

    @property
    def _held_rows(self) -> int:
        """How many rows the next step can continue, in the order that was last asked for."""
        return self._batch if self._rows is None else self._rows.shape[0]

    def _wrong_rows(self, received: str) -> OptionError:
        return OptionError(
            f"{type(self).__name__}: a step must continue rows that the cache holds; got "
            f"{received}. Keep the batch size, or call reorder_cache with the row of each.",
            code="cache-rows",
        )


def join_transformers() -> None:
    """Makes StepCache a subclass of transformers' Cache, which takes a second to import."""
    from transformers.cache_utils import Cache

    StepCache.__bases__ = (Cache,)


def run_step(
    cache: StepCache, values: Mapping[str, torch.Tensor], *, past: int, device: str
) -> torch.Tensor:
    """Runs a step of a generation, and emits its span.

    Args:
        cache: holds the tokens so far; the step adds its own.
        values: from npu_llm.steps.step_inputs.
        past: how many tokens there are so far.
        device: where to return the logits.

    Returns:
        logits (batch, kept, vocabulary) float32.
    """
    batch, tokens = values["input_ids"].shape
    phase = "decode" if past else "prefill"
    with observe.span(phase, f"{phase} {tokens} tokens", batch=batch, tokens=tokens, past=past):
        return cache.step(values, device)
