"""LanguageCache: the KV cache of a language model that reads embeddings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from npu_compiler.lowering.context import MASKED
from npu_llm.errors import ContextError, OptionError
from npu_llm.kv_cache.cache import Relocation, StepCache
from npu_llm.kv_cache.request_cache import SessionCache
from npu_llm.kv_cache.static import StaticCache, StepPrograms, slot_mask, slot_positions
from npu_llm.kv_cache.static_layout import KEY_POSITIONS, StaticSizes, StepSizes
from npu_runtime import Program, observe

__all__ = [
    "EMBEDS",
    "MASK",
    "POSITIONS",
    "LanguageCache",
    "Port",
    "SessionLanguageCache",
    "StaticLanguageCache",
]

EMBEDS, POSITIONS, MASK = "inputs_embeds", "position_ids", "attention_mask"
# Rows of Qwen's positions if text positions precede time, height and width.
_TEXT_AND_PLACES = 4


@dataclass(frozen=True)
class Port:
    """An input of the language model.

    Attributes:
        shape: its shape; only the rank and the number of kinds are used.
        adds: whether its values are added to scores.
    """

    shape: Sequence[Any]
    adds: bool


class LanguageCache(StepCache):
    """Keys and values of a language model that reads text and image embeddings."""

    # The language model's positions and masks, and its token limit; None without one.
    _ports: dict[str, Port]
    _context: int | None

    def read(self, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Reads embeddings of new tokens.

        Args:
            given: inputs_embeds (batch, tokens, width) float32; position_ids (batch, tokens), or
                for positions of several kinds (kinds, batch, tokens); attention_mask, with a suffix
                for each kind of mask if layers differ: (batch, past + tokens), 0 for padding, or
                (batch, 1, tokens, past + tokens), True for allowed pairs, or 0 and negative values
                for a model that adds it to scores. By default positions count from the cache's
                length, and masks allow all earlier tokens.

        Returns:
            hidden states (batch, tokens, width) float32, on cpu.

        Raises:
            OptionError: [cache-rows] for a batch that does not match the cache's rows,
                [cache-broken] after an interrupted step, [step-shape] or [step-dtype] for invalid
                positions or masks.
            ContextError: [context-overflow] for more tokens than the model supports.
        """
        embeds = given[EMBEDS]
        batch, tokens = embeds.shape[:2]
        self._check(self.get_seq_length() + tokens)
        values = {EMBEDS: embeds.detach().to("cpu", torch.float32).contiguous()}
        if given.get(MASK) is None and MASK in self._ports:
            _check_one_text(given.get(POSITIONS))
        for name in self._ports:
            values[name] = self._value(name, given, batch, tokens)
        past = self.get_seq_length()
        phase = "decode" if past else "prefill"
        with observe.span(phase, f"{phase} {tokens} tokens", batch=batch, tokens=tokens, past=past):
            return self._run_language(values, batch, tokens)

    @abstractmethod
    def _run_language(
        self, values: Mapping[str, torch.Tensor], batch: int, tokens: int
    ) -> torch.Tensor:
        """Runs a step on named inputs; returns hidden states (batch, tokens, width)."""

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> NoReturn:
        """Raises [foreign-cache]: only vision-language models read embeddings into it."""
        raise OptionError(
            "`past_key_values` must be a cache that this model returned, got one of a "
            "vision-language model. Omit it for a new one.",
            code="foreign-cache",
        )

    def _value(
        self, name: str, given: Mapping[str, torch.Tensor], batch: int, tokens: int
    ) -> torch.Tensor:
        if name == POSITIONS:
            return self._positions(given.get(name), batch, tokens)
        return self._mask(name, given.get(name), batch, tokens)

    def _positions(self, positions: torch.Tensor | None, batch: int, tokens: int) -> torch.Tensor:
        kinds = tuple(self._ports[POSITIONS].shape[:-2])
        if positions is None:
            past = self.get_seq_length()
            positions = torch.arange(past, past + tokens)
        elif kinds and positions.dim() == 3 and positions.shape[0] == kinds[0] + 1:
            positions = positions[1:]  # the first ones are text positions, used only for masks
        try:
            found = positions.to("cpu", torch.int64).expand(*kinds, batch, tokens)
        except RuntimeError as failure:
            raise _unfit(POSITIONS, (*kinds, batch, tokens), positions) from failure
        return found.contiguous()

    def _mask(self, name: str, mask: torch.Tensor | None, batch: int, tokens: int) -> torch.Tensor:
        length = self.get_seq_length() + tokens
        if len(self._ports[name].shape) == 2:
            wanted: tuple[int, ...] = (batch, length)
            if mask is None:
                mask = torch.ones(wanted)
            found = mask.to("cpu", torch.int64)
        else:
            wanted = (batch, 1, tokens, length)
            adds = self._ports[name].adds
            if mask is None:
                mask = torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)
                mask = mask.expand(wanted)
                mask = torch.where(mask, 0.0, MASKED) if adds else mask
            if mask.is_floating_point() != adds:
                wanted_dtype = torch.float32 if adds else torch.bool
                raise OptionError(
                    f"`{MASK}` must be {wanted_dtype} for this model, if it contains pairs of "
                    f"tokens, got {mask.dtype}. Pass a mask (batch, tokens) of 1 and 0.",
                    code="step-dtype",
                )
            # A smaller added value would be -inf in 16 bits, and NaN for padding.
            found = mask.to("cpu").clamp_min(MASKED) if adds else mask.to("cpu")
        if tuple(found.shape) != wanted:
            raise _unfit(MASK, wanted, found)
        return found.contiguous()

    def _check(self, tokens: int) -> None:
        self._check_sound()
        if self._context is not None and tokens > self._context:
            raise ContextError(
                f"`input_ids` must be at most {self._context:,} tokens, including images, for "
                f"this model, got {tokens:,}. Shorten the prompt, pass fewer images, or request "
                "fewer new tokens.",
                code="context-overflow",
            )


class SessionLanguageCache(LanguageCache, SessionCache):
    """Keys and values in the program's state, for any sizes."""

    def __init__(self, program: Program, *, context: int | None) -> None:
        """Stores the program.

        Args:
            program: the language model's program; its state is the cache.
            context: its context in tokens; None if it sets no limit.
        """
        SessionCache.__init__(self, program.session())
        self._ports = {
            port.name: Port(tuple(port.shape), port.dtype.is_floating_point)
            for port in program.inputs
            if port.name not in (EMBEDS, "beam_idx")
        }
        self._context = context

    def _run_language(
        self, values: Mapping[str, torch.Tensor], batch: int, tokens: int
    ) -> torch.Tensor:
        rows = self.next_rows(batch)
        if self.get_seq_length() == 0:
            self.session.reset()
            rows = torch.arange(batch, dtype=torch.int32)
        given = {**values, "beam_idx": rows}
        self._is_broken = True
        found = self.session.run([given[name] for name in self._names], output_device="cpu")
        self._slots.append(tokens)
        self._rows, self._batch, self._is_broken = None, batch, False
        return found[0]


def _check_one_text(positions: torch.Tensor | None) -> None:
    """Rejects positions that transformers would interpret as several consecutive texts."""
    if positions is None or (positions.dim() == 3 and positions.shape[0] != _TEXT_AND_PLACES):
        return
    of_text = positions if positions.dim() == 2 else positions[0]
    if bool((of_text.diff() != 1).any()):
        raise OptionError(
            "`position_ids` must increase by one without an attention_mask, since others mean "
            "several texts in a row, got a jump. Pass the mask, and one row per text.",
            code="step-shape",
        )


def _unfit(name: str, wanted: tuple[int, ...], got: Any) -> OptionError:
    return OptionError(
        f"`{name}` must have shape {wanted}, for cached and new tokens, got {tuple(got.shape)}. "
        "Omit it, or extend it with each step.",
        code="step-shape",
    )


class StaticLanguageCache(LanguageCache, StaticCache):
    """Keys and values in host memory, used by programs of fixed sizes."""

    def __init__(
        self,
        programs: StepPrograms,
        sizes: StaticSizes,
        *,
        relocation: Relocation,
        ports: Mapping[str, Port],
        context: int,
    ) -> None:
        """Creates an empty cache.

        Args:
            programs: the language model's programs.
            sizes: their sizes.
            relocation: how they identify valid slots.
            ports: their positions and masks.
            context: maximum number of tokens of prompt and answer.
        """
        StaticCache.__init__(self, programs, sizes, relocation=relocation)
        self._ports = dict(ports)
        self._context = context

    def _run_language(
        self, values: Mapping[str, torch.Tensor], batch: int, tokens: int
    ) -> torch.Tensor:
        # Embeddings in place of token ids.
        named = {"input_ids" if name == EMBEDS else name: one for name, one in values.items()}
        named["logits_to_keep"] = torch.arange(tokens)
        return StaticCache.step(self, named, "cpu")

    def _inputs(
        self,
        sizes: StepSizes,
        index: int,
        at: int,
        count: int,
        wanted: torch.Tensor,
        values: Mapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        past, padding = self._length + at, sizes.tokens - count
        found = {KEY_POSITIONS: slot_positions(past, sizes)}
        for name, tensor in values.items():
            if name == "input_ids":
                each = tensor[index : index + 1, at : at + count]
                each = torch.nn.functional.pad(each, (0, 0, 0, padding))
            elif name == POSITIONS:
                each = tensor[..., index : index + 1, at : at + count]
                each = _repeated(each, -1, padding)
            elif name.partition(".")[0] != MASK:
                continue
            elif tensor.dim() == 2:
                each = tensor[index : index + 1, : past + count]
                each = slot_mask(each, past, sizes, self._relocation)
            else:
                each = tensor[index : index + 1, :, at : at + count, : past + count]
                hidden = MASKED if each.is_floating_point() else 0
                each = slot_mask(_repeated(each, 2, padding), past, sizes, "mask", hidden=hidden)
            found[name] = each.contiguous()
        return found


def _repeated(tensor: torch.Tensor, dim: int, more: int) -> torch.Tensor:
    """Repeats the last element of a tensor along a dimension."""
    if not more:
        return tensor
    sizes = list(tensor.shape)
    sizes[dim] = more
    return torch.cat([tensor, tensor.narrow(dim, tensor.shape[dim] - 1, 1).expand(sizes)], dim)
