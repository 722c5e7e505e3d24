"""The static pipeline's cache of a generation with an encoder, in the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from npu_llm.encoder_decoders.cross_cache import CrossCache, StepResult, equal_neighbours
from npu_llm.kv_cache.cache import Relocation, run_step
from npu_llm.kv_cache.static import StaticCache, StepPrograms
from npu_llm.kv_cache.static_layout import StaticLayout, StaticSizes, StepSizes
from npu_llm.kv_cache.step_weights import StepWeights
from npu_runtime import Program

__all__ = ["SOURCE_MASK", "CrossPrograms", "StaticCrossCache"]

# The decoder's input that says which of the encoder's results count.
SOURCE_MASK = "source_mask"


@dataclass(frozen=True)
class CrossPrograms:
    """The programs for encoder results of one length.

    Attributes:
        bridge: computes, from hidden states (1, length, width) and which of them count, what the
            decoder reads of one source, by the names of its inputs.
        decoder: reads tokens.
    """

    bridge: Callable[[torch.Tensor, torch.Tensor | None], Mapping[str, torch.Tensor]]
    decoder: StepPrograms


class _Unread:
    """Stands where a cache's programs will be once the length of its source is known."""

    @property
    def layout(self) -> StaticLayout:
        """Raises: a decoder reads its source first."""
        raise AssertionError("a source is read before tokens")

    def get(self, sizes: StepSizes) -> Program:
        """Raises: a decoder reads its source first."""
        raise AssertionError(f"a source is read before tokens, here {sizes}")

    def weights(self, sizes: StepSizes) -> StepWeights:
        """Raises: a decoder reads its source first."""
        raise AssertionError(f"a source is read before tokens, here {sizes}")


class StaticCrossCache(CrossCache, StaticCache):
    """Keys and values in the host's memory; rows of one source share what they read of it."""

    def __init__(
        self,
        find: Callable[[int], CrossPrograms],
        sizes: StaticSizes,
        *,
        relocation: Relocation,
        positions: int,
    ) -> None:
        """Makes an empty cache.

        Args:
            find: returns the programs for an encoder's result of some length.
            sizes: those in which the decoder's programs come.
            relocation: how they learn which slots count.
            positions: how many tokens the decoder takes.
        """
        StaticCache.__init__(self, _Unread(), sizes, relocation=relocation)
        self._find = find
        self._positions = positions
        # Of each row and chunk of the step that runs.
        self._noted: list[list[Sequence[torch.Tensor]]] = []

    @property
    def has_source(self) -> bool:
        """Whether the encoder's result was read."""
        return bool(self._given)

    def read(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Computes what cross-attention reads; see CrossCache.read."""
        programs = self._find(hidden.shape[1])
        groups, firsts = equal_neighbours(hidden, mask)
        found = [
            programs.bridge(hidden[row : row + 1], None if mask is None else mask[row : row + 1])
            for row in firsts
        ]
        self._programs = programs.decoder
        self._given = [found[group] for group in groups.tolist()]

    def next(
        self,
        ids: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> StepResult:
        """Reads tokens; see CrossCache.next."""
        past, (batch, tokens) = self.get_seq_length(), ids.shape
        self.check_positions(past + tokens)
        if mask is None:
            mask = torch.ones(batch, past + tokens, dtype=torch.int64)
        if places is None:
            places = (mask.cumsum(-1) - 1).clamp_min(0)[:, past:]
        values = {
            "input_ids": ids,
            "attention_mask": mask.to(torch.int64),
            "position_ids": places.expand(batch, tokens),
            "logits_to_keep": torch.arange(tokens),
        }
        self._noted = [[] for _ in range(batch)]
        logits = run_step(self, values, past=past, device="cpu")
        # Chunks follow each other along the tokens, rows along the batch; layer by layer.
        rows = [[torch.cat(one, 2) for one in zip(*row, strict=True)] for row in self._noted]
        attentions = tuple(torch.cat(one) for one in zip(*rows, strict=True))
        return StepResult(logits, attentions)

    def reset(self) -> None:
        """Forgets everything, the source as well."""
        super().reset()
        self._given = ()

    def _note(self, row: int, results: Sequence[torch.Tensor], count: int) -> None:
        self._noted[row].append([one[:, :, :count] for one in results])
