"""StepCache: the KV cache of one request, as transformers sees it, and the inputs of its steps.

A program reads whatever it gets: a token id beyond the vocabulary would yield zeros and no error,
so all inputs are checked here.
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
            values: from npu_llm.kv_cache.cache.
            device: where to return the logits.

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
                f"`{type(self).__name__}.crop` must be called on a cache that can be cut "
                f"(is_croppable), got one that cannot, with {kept} of {length} tokens to keep. "
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
            f"`{type(self).__name__}.update` must not be called; only the compiled program writes "
            "keys and values. Start from a new cache: omit past_key_values.",
            code="cache-in-program",
        )

    def _check_sound(self) -> None:
        """Raises OptionError [cache-broken] after a step that was interrupted."""
        if self.is_broken:
            raise OptionError(
                f"`{type(self).__name__}` must not be used after a step was interrupted, since its "
                "contents are unknown, got another step. Start from a new cache, or reset() this "
                "one.",
                code="cache-broken",
            )

    @property
    def _held_rows(self) -> int:
        """How many rows the next step can continue, in the order that was last asked for."""
        return self._batch if self._rows is None else self._rows.shape[0]

    def _wrong_rows(self, received: str) -> OptionError:
        return OptionError(
            f"{type(self).__name__}: a step must continue rows that the cache holds, got "
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
        values: from npu_llm.kv_cache.cache.
        past: how many tokens there are so far.
        device: where to return the logits.

    Returns:
        logits (batch, kept, vocabulary) float32.
    """
    batch, tokens = values["input_ids"].shape
    phase = "decode" if past else "prefill"
    with observe.span(phase, f"{phase} {tokens} tokens", batch=batch, tokens=tokens, past=past):
        return cache.step(values, device)


# How a program learns which slots count: from an input with each slot's position, or only from
# zeros in its mask; None if it takes every slot for the token of the same number.
Relocation = Literal["positions", "mask"] | None

_HIDDEN = -1


class Slots:
    """The slots of one cache; the same for all rows of a batch.

    Attributes:
        held: slots in use, including hidden ones.
        length: tokens that count.
    """

    def __init__(self) -> None:
        self.held = 0
        self.length = 0
        # Set once something was hidden: until then slot and position are the same number.
        self._positions: torch.Tensor | None = None

    @property
    def hidden(self) -> int:
        """How many slots in use are hidden."""
        return self.held - self.length

    def append(self, tokens: int) -> None:
        """Records that a step has filled the next slots with the next tokens."""
        if self._positions is not None:
            new = torch.arange(self.length, self.length + tokens)
            self._positions = torch.cat([self._positions, new])
        self.held += tokens
        self.length += tokens

    def crop(self, length: int) -> None:
        """Hides all tokens but the first `length`, which must not exceed their number."""
        if length == self.length:
            return
        if self._positions is None:
            self._positions = torch.arange(self.held)
        self._positions[self._positions >= length] = _HIDDEN
        self.length = length

    def key_positions(self, tokens: int) -> torch.Tensor:
        """Returns each slot's position once a step of `tokens` tokens has added its own.

        A hidden slot gets the last position of all, which no query of the step reaches and for
        which the result of `mask` is 0.

        Returns:
            (held + tokens,) int64 on cpu.
        """
        count = self.held + tokens
        if self._positions is None:
            return torch.arange(count)
        known = self._positions.masked_fill(self._positions == _HIDDEN, count - 1)
        return torch.cat([known, torch.arange(self.length, self.length + tokens)])

    def mask(self, mask: torch.Tensor, relocation: Relocation) -> torch.Tensor:
        """Returns a step's mask for the slots, given its mask for the tokens.

        Args:
            mask: (batch, length + tokens) int64, by position.
            relocation: how the program learns which slots count.

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
    """Returns the inputs that describe a step's tokens, each contiguous int64, on its device.

    The cache adds inputs that say where the tokens lie in it.

    Args:
        input_ids: (batch, tokens).
        attention_mask: (batch, past + tokens), 0 for padding; None for no padding.
        position_ids: (batch, tokens) or (1, tokens); None to count what is not padding.
        logits_to_keep: how many tokens, counted from the end, to return logits for, 0 for all; or
            indices.
        past: how many tokens the cache holds.
        vocabulary: token ids are below this.

    Raises:
        OptionError: [step-shape] for a tensor of another shape, [step-dtype] for anything but a
            tensor, or for token ids that are not integers, [token-range] for a token id that the
            model does not have, [kept-range] for an index that is not that of a token.
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
    """Checks what a generation starts from, before transformers uses it.

    Args:
        input_ids: (batch, tokens); None to start from nothing.
        attention_mask: (batch, tokens), or (batch, past + tokens) for a cache that is continued.
        past: how many tokens the cache holds.

    Raises:
        OptionError: [step-shape] or [step-dtype], as step_inputs does.
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
            f"`input_ids` must be integers, the ids of tokens, got {input_ids.dtype}. Pass "
            "what the tokenizer returned, or int64.",
            code="step-dtype",
        )


def _check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise OptionError(
            f"`{name}` must be a tensor, got {type(value).__name__}. Pass "
            'the result of tokenizer(..., return_tensors="pt"), or make a tensor of it.',
            code="step-dtype",
        )


def _check_shape(name: str, tensor: Any, shapes: list[tuple[int, int]]) -> None:
    _check_tensor(name, tensor)
    if tuple(tensor.shape) not in shapes:
        raise OptionError(
            f"`{name}` must have shape {shapes[0]}, for the cache's tokens and the new ones, got "
            f"{tuple(tensor.shape)}. Omit it, or extend it with each step.",
            code="step-shape",
        )


def _kept(logits_to_keep: int | torch.Tensor, tokens: int) -> torch.Tensor:
    """Returns the indices of the tokens whose logits are wanted: (kept,) int64 on cpu."""
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
