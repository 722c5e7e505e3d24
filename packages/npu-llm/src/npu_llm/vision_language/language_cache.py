"""The cache of one generation from embeddings: keys and values, and the inputs of each step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from npu_compiler.lowering.context import MASKED
from npu_llm.errors import ContextError, OptionError
from npu_llm.kv_cache.cache import StepCache
from npu_runtime import Program, observe

__all__ = ["EMBEDS", "MASK", "POSITIONS", "LanguageCache", "Port", "SessionLanguageCache"]

EMBEDS, POSITIONS, MASK = "inputs_embeds", "position_ids", "attention_mask"
# Rows of Qwen's positions if those of text stand before time, height and width.
_TEXT_AND_PLACES = 4


@dataclass(frozen=True)
class Port:
    """An input of the language model.

    Attributes:
        shape: its sizes, of which only the number of them and those of kinds are read.
        adds: whether it holds numbers that are added to scores.
    """

    shape: Sequence[Any]
    adds: bool


class LanguageCache(StepCache):
    """Keys and values of a language model that reads embeddings of text and images."""

    # Positions and masks that the language model takes, and how many tokens; None for no limit.
    _ports: dict[str, Port]
    _context: int | None

    def read(self, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Reads embeddings of new tokens.

        Args:
            given: inputs_embeds (batch, tokens, width) float32; position_ids (batch, tokens), or
                for positions of several kinds (kinds, batch, tokens); attention_mask, with a name
                behind it if layers have masks of several kinds: (batch, past + tokens), 0 for
                padding, or (batch, 1, tokens, past + tokens), True where a token may attend, or
                for a model that adds it to scores 0 there and less elsewhere.
                Positions count from the cache's length if they are omitted, and a mask that is
                omitted allows all that lies before.

        Returns:
            hidden states (batch, tokens, width) float32, on cpu.

        Raises:
            OptionError: [cache-rows] for a batch that does not match the cache's rows,
                [cache-broken] after a step that was interrupted, [step-shape] or [step-dtype] for
                positions or masks that do not fit.
            ContextError: [context-overflow] for more tokens than the model takes.
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
        """Runs a step on inputs by name; returns hidden states (batch, tokens, width)."""

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> NoReturn:
        """Raises [foreign-cache]: only models of images and text read embeddings into it."""
        raise OptionError(
            "past_key_values: must be a cache that this model returned; got that of a model of "
            "images and text. Omit it for a new one.",
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
            positions = positions[1:]  # the first are those of text, for masks alone
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
                    f"{MASK}: must be {wanted_dtype} for this model, if it says of each "
                    f"token which others it attends to; got {mask.dtype}. Pass a mask (batch, "
                    "tokens) of 1 and 0.",
                    code="step-dtype",
                )
            # Less than what is added here would be -inf in 16 bits, and NaN for padding.
            found = mask.to("cpu").clamp_min(MASKED) if adds else mask.to("cpu")
        if tuple(found.shape) != wanted:
            raise _unfit(MASK, wanted, found)
        return found.contiguous()

    def _check(self, tokens: int) -> None:
        if self.is_broken:
            raise OptionError(
                "LanguageCache: must not be used after a step was interrupted, since its contents "
                "are unknown; got another step. Start from a new cache, or reset() this one.",
                code="cache-broken",
            )
        if self._context is not None and tokens > self._context:
            raise ContextError(
                f"input_ids: the model's context holds {self._context:,} tokens, images included; "
                f"got {tokens:,}. Shorten the prompt, pass fewer images, or ask for fewer new "
                "tokens.",
                code="context-overflow",
            )


class SessionLanguageCache(LanguageCache):
    """Keys and values that the program keeps, whatever the sizes."""

    def __init__(self, program: Program, *, context: int | None) -> None:
        """Takes the program.

        Args:
            program: the language model's; its state is the cache.
            context: how many tokens it takes; None if it sets no limit.
        """
        super().__init__()
        self._session = program.session()
        self._names = [port.name for port in program.inputs]
        self._ports = {
            port.name: Port(tuple(port.shape), port.dtype.is_floating_point)
            for port in program.inputs
            if port.name not in (EMBEDS, "beam_idx")
        }
        self._context = context
        self._length = 0
        self._is_broken = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns how many tokens the cache holds, including padding."""
        return self._length

    @property
    def is_croppable(self) -> bool:
        """Whether the last tokens can be forgotten: never, the program keeps them."""
        return False

    @property
    def is_broken(self) -> bool:
        """Whether a step was interrupted, so that the state's contents are unknown."""
        return self._is_broken

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._session.reset()
        self._length, self._is_broken = 0, False

    def _run_language(
        self, values: Mapping[str, torch.Tensor], batch: int, tokens: int
    ) -> torch.Tensor:
        rows = self.next_rows(batch)
        if self._length == 0:
            self._session.reset()
            rows = torch.arange(batch, dtype=torch.int32)
        given = {**values, "beam_idx": rows}
        self._is_broken = True
        found = self._session.run([given[name] for name in self._names], output_device="cpu")
        self._length += tokens
        self._rows, self._batch, self._is_broken = None, batch, False
        return found[0]

    def _keep(self, length: int) -> NoReturn:
        raise AssertionError("crop refuses what is not croppable")


def _check_one_text(positions: torch.Tensor | None) -> None:
    """Refuses positions by which transformers would tell texts apart that follow each other."""
    if positions is None or (positions.dim() == 3 and positions.shape[0] != _TEXT_AND_PLACES):
        return
    of_text = positions if positions.dim() == 2 else positions[0]
    if bool((of_text.diff() != 1).any()):
        raise OptionError(
            "position_ids: must count up by one where no attention_mask is given, since others "
            "mean several texts in a row; got a jump. Pass the mask, and a row for each text.",
            code="step-shape",
        )


def _unfit(name: str, wanted: tuple[int, ...], got: Any) -> OptionError:
    return OptionError(
        f"{name}: must have shape {wanted}, for the cache's tokens and the new ones; got "
        f"{tuple(got.shape)}. Omit it, or extend it with each step.",
        code="step-shape",
    )
