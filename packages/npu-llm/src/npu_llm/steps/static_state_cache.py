"""The static pipeline's cache of a model with states, which are inputs and outputs of programs.

Keys and values lie as in any static cache. Each program takes a row's states and returns those
after its tokens, so a cache is cut as that of the dynamic pipeline: back to states that were kept,
and from there on tokens are read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from npu_llm.steps.slots import Relocation
from npu_llm.steps.state_cache import StateHistory, describe
from npu_llm.steps.static_cache import StaticCache, StepPrograms, slot_mask
from npu_llm.steps.static_layout import TOKEN_MASK, StaticSizes, StepSizes
from npu_llm.steps.step_weights import StepWeights

__all__ = ["StaticStateCache"]


class StaticStateCache(StaticCache):
    """The cache of one generation, in the host's memory: slots, if the model has keys, and states.

    A step that is interrupted leaves it as it was.
    """

    def __init__(
        self,
        programs: StepPrograms,
        sizes: StaticSizes,
        *,
        relocation: Relocation,
        given: Sequence[Mapping[str, torch.Tensor]] = (),
        weights: StepWeights | None = None,
    ) -> None:
        """Makes an empty cache; see StaticCache."""
        super().__init__(programs, sizes, relocation=relocation, given=given, weights=weights)
        self._history = StateHistory(programs.layout.states)
        # Of each row of the step that runs: the states after the chunks so far.
        self._running: list[Sequence[torch.Tensor]] = []

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step, in chunks and row by row; see StaticCache.step."""
        logits = super().step(values, device)
        self._history.advance(describe(values), self._states_after())
        return logits

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._history.reset()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns what the cache holds: keys and values by group, states and tokens."""
        if self._history.is_empty:
            return {}
        rows = self.next_rows(self._held_rows).long()
        return {**super().tensors(), **self._history.tensors(rows)}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads what `tensors` of a cache of the same model returned, if it was not empty.

        Raises:
            KeyError: if a group or a state is missing.
            RuntimeError: if a tensor has another shape.
        """
        super().restore(tensors)
        self._history.restore(tensors)

    def _held(self, tensors: Mapping[str, torch.Tensor]) -> tuple[int, int]:
        history = StateHistory(self._programs.layout.states)
        history.restore(tensors)
        _, batch, length = history.read.shape
        return batch, length

    def _prepare(self, batch: int, length: int) -> None:
        rows = self._rows
        super()._prepare(batch, length)
        if rows is not None:
            self._history.choose(rows.long())
        self._begin(self._history.states(batch))

    def _begin(self, states: Sequence[torch.Tensor]) -> None:
        self._running = [[one[row : row + 1] for one in states] for row in range(len(states[0]))]

    def _states_after(self) -> list[torch.Tensor]:
        if len(self._running) == 1:  # spares a copy
            return list(self._running[0])
        return [torch.cat(rows) for rows in zip(*self._running, strict=True)]

    def _keep(self, length: int) -> None:
        history, held = self._history, self._length
        read = history.read[:, :, :length]
        start, states = history.nearest(length)
        again = {
            "input_ids": read[0, :, start:],
            "position_ids": read[1, :, start:],
            "attention_mask": read[2],
            "logits_to_keep": torch.empty(0, dtype=torch.int64),
        }
        self._begin(states)
        self._length = start
        try:
            for index, row in enumerate(self._memory if start < length else ()):
                self._run(row, index, again)
        except BaseException:  # what was written into slots is what they held
            self._length = held
            raise
        history.cut(length, self._states_after())
        self._length = length

    def _note(self, row: int, results: Sequence[torch.Tensor], count: int) -> None:
        self._running[row] = results

    def _inputs(
        self,
        sizes: StepSizes,
        index: int,
        at: int,
        count: int,
        wanted: torch.Tensor,
        values: Mapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        past = self._length + at
        counts = values["attention_mask"][index : index + 1, past : past + count]
        counts = torch.nn.functional.pad(counts, (0, sizes.tokens - count))
        inputs = super()._inputs(sizes, index, at, count, wanted, values)
        if sizes.capacity:
            # A row for each token, which hides those behind it.
            seen = values["attention_mask"][index, : past + count]
            seen = torch.nn.functional.pad(seen, (0, sizes.tokens - count))
            rows = seen.expand(sizes.tokens, -1).tril(past)
            inputs["attention_mask"] = slot_mask(rows, past, sizes, self._relocation).contiguous()
        return {
            **inputs,
            TOKEN_MASK: counts.contiguous(),
            **dict(zip(self._history.names, self._running[index], strict=True)),
        }
