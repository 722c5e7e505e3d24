"""StepCache: the KV cache of one request, with transformers' cache interface, and step inputs.

A program does not validate its inputs: a token id outside the vocabulary would yield zeros without
an error, so all inputs are checked here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import torch

from npu_llm.errors import OptionError, check_token_range
from npu_runtime import observe

__all__ = [
    "Relocation",
    "Slots",
    "StepCache",
    "check_prompt",
    "join_transformers",
    "run_step",
    "step_inputs",
]


class _Base:
    """Placeholder for transformers' Cache until that is imported, see join_transformers."""

    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers


class StepCache(_Base):
    """The cache of one generation: a batch of sequences with the same number of tokens.

    Attributes:
        made_by: the pipeline of the model that created it, including the active adapters.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.made_by: Any = None
        self._batch = 0  # number of its rows
        self._rows: torch.Tensor | None = None  # rows that the next step continues

    # Implemented by each pipeline's class

    @abstractmethod
    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of tokens in the cache, including padding."""

    @abstractmethod
    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step, which adds its tokens to the cache.

        Args:
            values: from npu_llm.kv_cache.cache.
            device: device of the returned logits.

        Returns:
            logits (batch, kept, vocabulary) float32.
        """

    def append(self, tokens: Sequence[int], *, num_logits: int = 1) -> torch.Tensor:
        """Runs a step on new tokens of a single sequence, which has no padding.

        Returns:
            logits (num_logits, vocabulary) float32 of the last tokens, on cpu.
        """
        past, count = self.get_seq_length(), len(tokens)
        values = {
            "input_ids": torch.tensor([list(tokens)]),
            "attention_mask": torch.ones(1, past + count, dtype=torch.int64),
            "position_ids": torch.arange(past, past + count)[None],
            "logits_to_keep": torch.arange(count - num_logits, count),
        }
        return self.step(values, "cpu")[0]

    @property
    @abstractmethod
    def is_croppable(self) -> bool:
        """Whether the last tokens can be removed while keeping the others."""

    @abstractmethod
    def _keep(self, length: int) -> None:
        """Keeps the first tokens, fewer than the current number."""

    @property
    def is_linear(self) -> list[bool]:
        """Whether each layer's length is independent of the number of tokens: False for all."""
        return [False]

    @property
    def hidden_tokens(self) -> int:
        """Number of slots that removed tokens still occupy; 0 in a new cache."""
        return 0

    def reserve(self, tokens: int) -> None:
        """Reserves room for this many tokens, if growing step by step would be slow."""

    @property
    def is_broken(self) -> bool:
        """Whether a step was interrupted, so that the cache's contents are unknown."""
        return False

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the content for `restore`; empty if it cannot be copied."""
        return {}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads the non-empty result of `tensors` from a cache of the same model."""
        raise NotImplementedError

    # Interface of transformers

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Always -1: the cache grows."""
        return -1

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[int, int]:
        """Returns the length and offset of the keys for a step of query_length tokens."""
        return self.get_seq_length() + int(query_length), 0

    @property
    def is_initialized(self) -> bool:
        """Whether the cache is not empty."""
        return self.get_seq_length() > 0

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last tokens.

        Args:
            tokens_to_remove: as in transformers: if negative, the number of tokens to remove; if
                positive, the number to keep; 0 has no effect. See `reset` to remove all.

        Raises:
            OptionError: [not-croppable] if is_croppable is False.
        """
        length = self.get_seq_length()
        kept = tokens_to_remove if tokens_to_remove > 0 else max(length + tokens_to_remove, 0)
        if kept >= length:
            return
        if not self.is_croppable:
            raise OptionError(
                f"`{type(self).__name__}.crop` must be called on a croppable cache (is_croppable), "
                f"got one that is not, with {kept} of {length} tokens to keep. Start from a new "
                "cache: omit past_key_values.",
                code="not-croppable",
            )
        self._keep(kept)

    def reset(self) -> None:
        """Removes all tokens."""
        self._batch = 0
        self._rows = None

    def next_rows(self, batch: int) -> torch.Tensor:
        """Returns the cache row that each row of the next step continues.

        Args:
            batch: number of rows in the next step.

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
            OptionError: [cache-rows] for an invalid row index.
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
        """Raises: only a step's program writes keys and values."""
        raise OptionError(
            f"`{type(self).__name__}.update` must not be called; only the compiled program writes "
            "keys and values. Start from a new cache: omit past_key_values.",
            code="cache-in-program",
        )

    def _check_sound(self) -> None:
        """Raises OptionError [cache-broken] after an interrupted step."""
        if self.is_broken:
            raise OptionError(
                f"`{type(self).__name__}` must not be used after an interrupted step, since its "
                "contents are unknown, got another step. Start from a new cache, or reset() this "
                "one.",
                code="cache-broken",
            )

    @property
    def _held_rows(self) -> int:
        """Number of rows that the next step can continue, in the requested order."""
        return self._batch if self._rows is None else self._rows.shape[0]

    def _wrong_rows(self, received: str) -> OptionError:
        return OptionError(
            f"`{type(self).__name__}` must contain the rows that a step continues, got "
            f"{received}. Keep the batch size, or call reorder_cache with each row's source.",
            code="cache-rows",
        )


def join_transformers() -> None:
    """Makes StepCache a subclass of transformers' Cache; the import takes a second."""
    from transformers.cache_utils import Cache

    StepCache.__bases__ = (Cache,)


def run_step(
    cache: StepCache, values: Mapping[str, torch.Tensor], *, past: int, device: str
) -> torch.Tensor:
    """Runs a step of a generation, and emits its trace span.

    Args:
        cache: the past tokens; the step appends its own.
        values: from npu_llm.kv_cache.cache.
        past: number of past tokens.
        device: device of the returned logits.

    Returns:
        logits (batch, kept, vocabulary) float32.
    """
    batch, tokens = values["input_ids"].shape
    phase = "decode" if past else "prefill"
    with observe.span(phase, f"{phase} {tokens} tokens", batch=batch, tokens=tokens, past=past):
        return cache.step(values, device)


# A program's way to identify valid slots: by an input with each slot's position, or only by zeros
# in its mask; None if slot i must be token i.
Relocation = Literal["positions", "mask"] | None

_HIDDEN = -1


class Slots:
    """The slots of one cache; the same for all rows of a batch.

    Attributes:
        held: slots in use, including hidden ones.
        length: number of valid tokens.
    """

    def __init__(self) -> None:
        self.held = 0
        self.length = 0
        # Set once a token was hidden: until then slot and position are equal.
        self._positions: torch.Tensor | None = None

    @property
    def hidden(self) -> int:
        """Number of slots in use that are hidden."""
        return self.held - self.length

    def append(self, tokens: int) -> None:
        """Records that a step has filled the next slots with new tokens."""
        if self._positions is not None:
            new = torch.arange(self.length, self.length + tokens)
            self._positions = torch.cat([self._positions, new])
        self.held += tokens
        self.length += tokens

    def crop(self, length: int) -> None:
        """Hides all tokens except the first `length`, which must not exceed their number."""
        if length == self.length:
            return
        if self._positions is None:
            self._positions = torch.arange(self.held)
        self._positions[self._positions >= length] = _HIDDEN
        self.length = length

    def key_positions(self, tokens: int) -> torch.Tensor:
        """Returns each slot's position after a step has appended `tokens` tokens.

        A hidden slot gets the last position, which no query of the step reaches and for which the
        result of `mask` is 0.

        Returns:
            (held + tokens,) int64 on cpu.
        """
        count = self.held + tokens
        if self._positions is None:
            return torch.arange(count)
        known = self._positions.masked_fill(self._positions == _HIDDEN, count - 1)
        return torch.cat([known, torch.arange(self.length, self.length + tokens)])

    def mask(self, mask: torch.Tensor, relocation: Relocation) -> torch.Tensor:
        """Converts a step's mask for the tokens to a mask for the slots.

        Args:
            mask: (batch, length + tokens) int64, by position.
            relocation: how the program identifies valid slots.

        Returns:
            (batch, held + tokens) int64: by position, followed by zeros, for "positions"; by slot
            for "mask".
        """
        if self._positions is None or self.hidden == 0:
            return mask
        tokens = mask.shape[1] - self.length
        if relocation == "positions":
            return torch.nn.functional.pad(mask, (0, self.hidden))
        by_slot = mask.new_zeros(mask.shape[0], self.held + tokens)
        by_slot[:, : self.held][:, self._positions != _HIDDEN] = mask[:, : self.length]
        by_slot[:, self.held :] = mask[:, self.length :]
        return by_slot


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def step_inputs(
    input_ids: torch.Tensor,
    *,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    logits_to_keep: int | torch.Tensor,
    past: int,
    vocabulary: int,
) -> dict[str, torch.Tensor]:
    """Returns the inputs that describe a step's tokens, contiguous int64 on their device.

    The cache adds inputs that locate the tokens in it.

    Args:
        input_ids: (batch, tokens).
        attention_mask: (batch, past + tokens), 0 for padding; None for no padding.
        position_ids: (batch, tokens) or (1, tokens); None to count tokens that are not padding.
        logits_to_keep: number of tokens, counted from the end, to return logits for, 0 for all; or
            indices.
        past: number of tokens in the cache.
        vocabulary: vocabulary size; token ids are below it.

    Raises:
        OptionError: [step-shape] for a tensor of another shape, [step-dtype] for a value that is
            not a tensor, or token ids that are not integers, [token-range] for a token id outside
            the vocabulary, [kept-range] for an index beyond the tokens.
    """
    _check_ids(input_ids)
    batch, tokens = input_ids.shape
    check_token_range("input_ids", int(input_ids.min()), int(input_ids.max()), vocabulary)
    if attention_mask is None:
        attention_mask = torch.ones(batch, past + tokens, dtype=torch.int64)
    _check_shape("attention_mask", attention_mask, [(batch, past + tokens)])
    mask = attention_mask.to(torch.int64)
    if position_ids is None:
        position_ids = (mask.cumsum(-1) - 1).clamp_min(0)[:, -tokens:]
    _check_shape("position_ids", position_ids, [(batch, tokens), (1, tokens)])
    return {
        "input_ids": input_ids.to(torch.int64).contiguous(),
        "attention_mask": mask.contiguous(),
        "position_ids": position_ids.to(torch.int64).expand(batch, tokens).contiguous(),
        "logits_to_keep": _kept(logits_to_keep, tokens),
    }


def check_prompt(input_ids: Any, attention_mask: Any, *, past: int) -> None:
    """Validates the inputs of a generation before transformers uses them.

    Args:
        input_ids: (batch, tokens); None for an empty prompt.
        attention_mask: (batch, tokens), or (batch, past + tokens) to continue a cache.
        past: number of tokens in the cache.

    Raises:
        OptionError: [step-shape] or [step-dtype], see step_inputs.
    """
    if input_ids is None:
        return
    _check_ids(input_ids)
    if attention_mask is not None:
        batch, tokens = input_ids.shape
        _check_shape("attention_mask", attention_mask, [(batch, tokens), (batch, past + tokens)])


def _check_ids(input_ids: Any) -> None:
    _check_tensor("input_ids", input_ids)
    if input_ids.dim() != 2 or input_ids.numel() == 0:
        raise OptionError(
            "`input_ids` must have shape (batch, tokens) with at least one token, got "
            f"{tuple(input_ids.shape)}. Pass one row per sequence.",
            code="step-shape",
        )
    if input_ids.dtype not in _INTEGERS:
        raise OptionError(
            f"`input_ids` must be integer token ids, got {input_ids.dtype}. Pass the tokenizer's "
            "result, or int64.",
            code="step-dtype",
        )


def _check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise OptionError(
            f"`{name}` must be a tensor, got {type(value).__name__}. Pass the result of "
            'tokenizer(..., return_tensors="pt"), or convert it to a tensor.',
            code="step-dtype",
        )


def _check_shape(name: str, tensor: Any, shapes: list[tuple[int, int]]) -> None:
    _check_tensor(name, tensor)
    if tuple(tensor.shape) not in shapes:
        raise OptionError(
            f"`{name}` must have shape {shapes[0]}, for cached and new tokens, got "
            f"{tuple(tensor.shape)}. Omit it, or extend it with each step.",
            code="step-shape",
        )


def _kept(logits_to_keep: int | torch.Tensor, tokens: int) -> torch.Tensor:
    """Returns the indices of the tokens whose logits are returned: (kept,) int64 on cpu."""
    if not isinstance(logits_to_keep, torch.Tensor):
        first = max(tokens - logits_to_keep, 0) if logits_to_keep else 0
        return torch.arange(first, tokens)
    indices = logits_to_keep.to("cpu", torch.int64)
    wrong = (indices < -tokens) | (indices >= tokens)
    if indices.dim() != 1 or bool(wrong.any()):
        raise OptionError(
            f"`logits_to_keep` must be indices of the {tokens} tokens of this step, got "
            f"{logits_to_keep.tolist()}. Pass a number, or a vector of indices.",
            code="kept-range",
        )
    return torch.where(indices < 0, indices + tokens, indices)
