"""The cache of one generation from embeddings: keys and values, which the program keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from npu_compiler.lowering.constants import MASKED
from npu_llm.errors import ContextError, OptionError
from npu_llm.steps.step_cache import StepCache
from npu_runtime import Program, observe

__all__ = ["LanguageCache"]

_EMBEDS, _POSITIONS, _MASK = "inputs_embeds", "position_ids", "attention_mask"
# Rows of Qwen's positions if those of text stand before time, height and width.
_TEXT_AND_PLACES = 4


class LanguageCache(StepCache):
    """Keys and values of a language model that reads embeddings of text and images."""

    def __init__(self, program: Program, *, context: int | None) -> None:
        """Takes the program.

        Args:
            program: the language model's; its state is the cache.
            context: how many tokens it takes; None if it sets no limit.
        """
        super().__init__()
        self._session = program.session()
        self._ports = {port.name: tuple(port.shape) for port in program.inputs}
        self._dtypes = {port.name: port.dtype for port in program.inputs}
        self._context = context
        self._length = 0
        self._is_broken = False

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
        embeds = given[_EMBEDS]
        batch, tokens = embeds.shape[:2]
        self._check(self._length + tokens)
        rows = self.next_rows(batch)
        if self._length == 0:
            self._session.reset()
            rows = torch.arange(batch, dtype=torch.int32)
        values = {
            _EMBEDS: embeds.detach().to("cpu", torch.float32).contiguous(),
            "beam_idx": rows,
        }
        if given.get(_MASK) is None and self._ports.get(_MASK):
            _check_one_text(given.get(_POSITIONS))
        for name in self._ports.keys() - values.keys():
            values[name] = self._value(name, given, batch, tokens)
        past, self._is_broken = self._length, True
        phase = "decode" if past else "prefill"
        with observe.span(phase, f"{phase} {tokens} tokens", batch=batch, tokens=tokens, past=past):
            found = self._session.run([values[name] for name in self._ports], output_device="cpu")
        self._length, self._rows, self._batch, self._is_broken = past + tokens, None, batch, False
        return found[0]

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

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> NoReturn:
        """Raises [foreign-cache]: only models of images and text read embeddings into it."""
        raise OptionError(
            "past_key_values: must be a cache that this model returned; got that of a model of "
            "images and text. Omit it for a new one.",
            code="foreign-cache",
        )

    def _keep(self, length: int) -> NoReturn:
        raise AssertionError("crop refuses what is not croppable")

    def _value(
        self, name: str, given: Mapping[str, torch.Tensor], batch: int, tokens: int
    ) -> torch.Tensor:
        if name == _POSITIONS:
            return self._positions(given.get(name), batch, tokens)
        return self._mask(name, given.get(name), batch, tokens)

    def _positions(self, positions: torch.Tensor | None, batch: int, tokens: int) -> torch.Tensor:
        kinds = tuple(self._ports[_POSITIONS][:-2])
        if positions is None:
            positions = torch.arange(self._length, self._length + tokens)
        elif kinds and positions.dim() == 3 and positions.shape[0] == kinds[0] + 1:
            positions = positions[1:]  # the first are those of text, for masks alone
        try:
            found = positions.to("cpu", torch.int64).expand(*kinds, batch, tokens)
        except RuntimeError as failure:
            raise _unfit(_POSITIONS, (*kinds, batch, tokens), positions) from failure
        return found.contiguous()

    def _mask(self, name: str, mask: torch.Tensor | None, batch: int, tokens: int) -> torch.Tensor:
        length = self._length + tokens
        if len(self._ports[name]) == 2:
            wanted: tuple[int, ...] = (batch, length)
            if mask is None:
                mask = torch.ones(wanted)
            found = mask.to("cpu", torch.int64)
        else:
            wanted = (batch, 1, tokens, length)
            adds = self._dtypes[name].is_floating_point
            if mask is None:
                mask = torch.ones(tokens, length, dtype=torch.bool).tril(self._length)
                mask = mask.expand(wanted)
                mask = torch.where(mask, 0.0, MASKED) if adds else mask
            if mask.is_floating_point() != adds:
                raise OptionError(
                    f"{_MASK}: must be {self._dtypes[name]} for this model, if it says of each "
                    f"token which others it attends to; got {mask.dtype}. Pass a mask (batch, "
                    "tokens) of 1 and 0.",
                    code="step-dtype",
                )
            # Less than what is added here would be -inf in 16 bits, and NaN for padding.
            found = mask.to("cpu").clamp_min(MASKED) if adds else mask.to("cpu")
        if tuple(found.shape) != wanted:
            raise _unfit(_MASK, wanted, found)
        return found.contiguous()

    def _check(self, tokens: int) -> None:
        if self._is_broken:
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
