"""KV caches of the static pipeline, in host memory, and the steps that use them.

Programs have fixed sizes. A step of many tokens runs in chunks, the last one padded. Empty slots
are masked. A program's output is written into its slots, so the past is never moved. A cache starts
small and doubles its capacity as it grows, because the cost of attention depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from npu_llm.kv_cache.cache import Relocation, StepCache
from npu_llm.kv_cache.request_cache import StateHistory, describe
from npu_llm.kv_cache.static_layout import (
    KEY_POSITIONS,
    TOKEN_MASK,
    StaticLayout,
    StaticSizes,
    StepSizes,
)
from npu_llm.kv_cache.step_weights import StepWeights
from npu_runtime import Program

__all__ = [
    "StaticCache",
    "StaticStateCache",
    "StepPrograms",
    "slot_mask",
    "slot_positions",
    "static_cache",
]


class StepPrograms(Protocol):
    """The programs of a model by size."""

    @property
    def layout(self) -> StaticLayout:
        """The programs' ports."""

    def get(self, sizes: StepSizes) -> Program:
        """Returns the program for these sizes."""

    def weights(self, sizes: StepSizes) -> StepWeights:
        """Returns the inputs besides tokens, masks and caches."""


class _Row:
    """The memory of one sequence."""

    def __init__(
        self,
        layout: StaticLayout,
        capacity: int,
        dtype: torch.dtype,
        given: Mapping[str, torch.Tensor],
    ) -> None:
        self.layout = layout
        self.dtype = dtype
        self.given = given
        # Empty slots are masked, but must be finite: 0 times NaN is NaN. Pinned, because an NPU
        # plugin copies other host memory at each step.
        self.memory = [
            torch.zeros(group.shape(capacity), dtype=dtype, pin_memory=True)
            for group in layout.groups
        ]
        self.ports = {
            name: memory[index : index + 1]
            for group, memory in zip(layout.groups, self.memory, strict=True)
            for index, name in enumerate(group.ports)
        } | dict(given)

    def write(self, added: Sequence[torch.Tensor], first: int, count: int) -> None:
        """Writes a step's output into the slots from `first` on."""
        for group, memory, new in zip(self.layout.groups, self.memory, added, strict=True):
            group.slots(memory, first, first + count).copy_(new[:, :, :count])

    def copy(self, capacity: int, length: int) -> _Row:
        """Returns a row with the same first tokens and another capacity."""
        row = _Row(self.layout, capacity, self.dtype, self.given)
        for group, old, new in zip(self.layout.groups, self.memory, row.memory, strict=True):
            group.slots(new, 0, length).copy_(group.slots(old, 0, length))
        return row


class StaticCache(StepCache):
    """The cache of one generation, in host memory."""

    def __init__(
        self,
        programs: StepPrograms,
        sizes: StaticSizes,
        *,
        relocation: Relocation,
        given: Sequence[Mapping[str, torch.Tensor]] = (),
    ) -> None:
        """Creates an empty cache.

        Args:
            programs: the model's programs.
            sizes: their sizes.
            relocation: how they identify valid slots.
            given: other inputs of the programs, per row or once for all.
        """
        super().__init__()
        self._programs = programs
        self._sizes = sizes
        self._relocation: Relocation = relocation
        self._memory: list[_Row] = []
        # Each row's inputs besides tokens and cache; empty if the model has none.
        self._given = given
        self._length = 0
        self._reserved = 0
        self.capacity = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of tokens in the cache, including padding."""
        return self._length

    @property
    def is_croppable(self) -> bool:
        """True: slots of removed tokens are overwritten."""
        return True

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step, in chunks and row by row; see StepCache.step.

        An interrupted step leaves the cache unchanged.

        Raises:
            OptionError: [cache-rows] for a batch that does not match the cache's rows.
            ContextError: [context-overflow] if the tokens do not fit.
        """
        batch, tokens = values["input_ids"].shape[:2]
        self._prepare(batch, self._length + tokens)
        on_host = {name: tensor.cpu() for name, tensor in values.items()}
        logits = [self._run(row, index, on_host) for index, row in enumerate(self._memory)]
        self._length += tokens
        return torch.cat(logits).to(device) if batch > 1 else logits[0].to(device)

    def reset(self) -> None:
        """Removes all tokens."""
        super().reset()
        self._memory = []
        self._length = self.capacity = 0

    def reserve(self, tokens: int) -> None:
        """Reserves room for this many tokens, which the next step allocates.

        Raises:
            ContextError: [context-overflow] if the model has no cache of that size.
        """
        self._reserved = self._sizes.capacity(tokens)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the content by group: (batch, caches, heads, tokens, size)."""
        groups = self._programs.layout.groups
        rows = [self._memory[index] for index in self.next_rows(self._held_rows).tolist()]
        return {
            f"group.{index}": torch.stack(
                [group.slots(row.memory[index], 0, self._length) for row in rows]
            ).contiguous()
            for index, group in enumerate(groups)
        }

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads the result of `tensors` from a cache of the same model.

        Raises:
            KeyError: if a group is missing.
            RuntimeError: if a tensor has another shape.
        """
        self.reset()
        batch, length = self._held(tensors)
        self._prepare(batch, length)
        for index, group in enumerate(self._programs.layout.groups):
            for row, tensor in zip(self._memory, tensors[f"group.{index}"], strict=True):
                group.slots(row.memory[index], 0, length).copy_(tensor)
        self._length = length

    def _held(self, tensors: Mapping[str, torch.Tensor]) -> tuple[int, int]:
        """Returns the number of rows and tokens in a result of `tensors`."""
        first = tensors["group.0"]
        return first.shape[0], first.shape[3]

    def _keep(self, length: int) -> None:
        self._length = length

    def _prepare(self, batch: int, length: int) -> None:
        """Prepares memory for each row of the step, with room for this many tokens."""
        chosen = self.next_rows(batch).tolist()
        capacity = max(self._sizes.capacity(length), self._reserved, self.capacity)
        known = self._memory
        layout, dtype = self._programs.layout, self._programs.layout.torch_dtype
        rows: list[_Row] = []
        for index in chosen:
            if not known:
                rows.append(_Row(layout, capacity, dtype, self._given_to(index)))
            elif known[index] in rows or capacity != self.capacity:
                rows.append(known[index].copy(capacity, self._length))
            else:
                rows.append(known[index])
        self._memory, self._batch, self._rows = rows, batch, None
        self.capacity = capacity

    def _given_to(self, index: int) -> Mapping[str, torch.Tensor]:
        """Returns a row's inputs besides tokens and cache."""
        if not self._given:
            return {}
        return self._given[0 if len(self._given) == 1 else index]

    def _run(self, row: _Row, index: int, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Runs all tokens of one row; returns logits (1, kept, vocabulary)."""
        tokens = values["input_ids"].shape[1]
        kept, place = torch.unique(values["logits_to_keep"], return_inverse=True)
        pieces = []
        at = 0
        while at < tokens:
            size = self._sizes.chunk(tokens - at, self._length + at)
            count = min(size, tokens - at)
            wanted = kept[(kept >= at) & (kept < at + count)] - at
            is_one = wanted.numel() < 2 and "logits_to_keep" in row.layout.inputs
            is_first = size > 1 and self._length + at == 0 and row.layout.starts_empty
            capacity = 0 if is_first else self.capacity
            sizes = StepSizes(size, capacity, 1 if is_one else size)
            program = self._programs.get(sizes)
            inputs = self._inputs(sizes, index, at, count, wanted, values)
            inputs |= row.ports | self._programs.weights(sizes).inputs(inputs)
            logits, *added = program.run(
                [inputs[port.name] for port in program.inputs], output_device="cpu"
            )
            groups = len(row.memory)
            row.write(added[:groups], self._length + at, count)
            self._note(index, added[groups:], count)
            pieces.append(logits[:, : wanted.numel()])
            at += count
        if len(pieces) == 1 and place.numel() == 1:
            return pieces[0]
        return torch.cat(pieces, 1)[:, place]

    def _note(self, row: int, results: Sequence[torch.Tensor], count: int) -> None:
        """Handles a chunk's outputs besides logits and caches: none here."""

    def _inputs(
        self,
        sizes: StepSizes,
        index: int,
        at: int,
        count: int,
        wanted: torch.Tensor,
        values: Mapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        """Returns a chunk's inputs except the caches: `count` tokens from `at` on, then padding."""
        past, padding = self._length + at, sizes.tokens - count
        ids = values["input_ids"][index, at : at + count]
        positions = values["position_ids"][index, at : at + count]
        mask = values["attention_mask"][index, : past + count]
        if padding:
            ids = torch.nn.functional.pad(ids, (0, padding))
            positions = torch.cat([positions, positions[-1:].expand(padding)])
        inputs = {
            "input_ids": ids[None].contiguous(),
            "position_ids": positions[None].contiguous(),
            "logits_to_keep": torch.nn.functional.pad(wanted, (0, sizes.kept - wanted.numel())),
        }
        if self._programs.layout.groups:
            mask = slot_mask(mask, past, sizes, self._relocation)
            inputs["attention_mask"] = mask[None].contiguous()
            inputs[KEY_POSITIONS] = slot_positions(past, sizes)
        return inputs


def slot_mask(
    mask: torch.Tensor,
    past: int,
    sizes: StepSizes,
    relocation: Relocation,
    *,
    hidden: float = 0,
) -> torch.Tensor:
    """Converts a chunk's mask for its tokens to one for slots and padding.

    Args:
        mask: (..., past + tokens).
        past: number of tokens before the chunk.
        sizes: sizes of the program.
        relocation: how the program identifies valid slots.
        hidden: mask value for invalid slots.

    Returns:
        (..., capacity + tokens of the program).
    """
    missing = sizes.capacity + sizes.tokens - mask.shape[-1]
    if relocation != "mask":
        return torch.nn.functional.pad(mask, (0, missing), value=hidden)
    free = sizes.capacity - past
    empty = mask.new_full((*mask.shape[:-1], missing), hidden)
    parts = (mask[..., :past], empty[..., :free], mask[..., past:], empty[..., free:])
    return torch.cat(parts, -1)


def slot_positions(past: int, sizes: StepSizes) -> torch.Tensor:
    """Returns the position of each slot, and of each token of a chunk: (capacity + tokens,)."""
    nowhere = sizes.capacity + sizes.tokens - 1  # masked by 0, and reached by no query
    empty = torch.full((sizes.capacity - past,), nowhere)
    return torch.cat([torch.arange(past), empty, torch.arange(past, past + sizes.tokens)])


class StaticStateCache(StaticCache):
    """The cache of one generation in host memory: slots, if the model has keys, and states.

    An interrupted step leaves it unchanged.
    """

    def __init__(
        self,
        programs: StepPrograms,
        sizes: StaticSizes,
        *,
        relocation: Relocation,
        given: Sequence[Mapping[str, torch.Tensor]] = (),
    ) -> None:
        """Creates an empty cache; see StaticCache."""
        super().__init__(programs, sizes, relocation=relocation, given=given)
        self._history = StateHistory(programs.layout.states)
        # Per row of the running step: the states after the chunks so far.
        self._running: list[Sequence[torch.Tensor]] = []

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step, in chunks and row by row; see StaticCache.step."""
        logits = super().step(values, device)
        self._history.advance(describe(values), self._states_after())
        return logits

    def reset(self) -> None:
        """Removes all tokens."""
        super().reset()
        self._history.reset()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the content: keys and values by group, states and tokens."""
        if self._history.is_empty:
            return {}
        rows = self.next_rows(self._held_rows).long()
        return {**super().tensors(), **self._history.tensors(rows)}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads the non-empty result of `tensors` from a cache of the same model.

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
        if len(self._running) == 1:  # avoids a copy
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
        except BaseException:  # slots contain what was written into them
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
            # A row for each token, which hides later tokens.
            seen = values["attention_mask"][index, : past + count]
            seen = torch.nn.functional.pad(seen, (0, sizes.tokens - count))
            rows = seen.expand(sizes.tokens, -1).tril(past)
            inputs["attention_mask"] = slot_mask(rows, past, sizes, self._relocation).contiguous()
        return {
            **inputs,
            TOKEN_MASK: counts.contiguous(),
            **dict(zip(self._history.names, self._running[index], strict=True)),
        }


def static_cache(
    programs: StepPrograms,
    sizes: StaticSizes,
    relocation: Relocation,
    given: Sequence[Mapping[str, torch.Tensor]] = (),
) -> StaticCache:
    """Returns an empty cache; for the arguments see npu_llm.models.load.StaticPipeline."""
    made = StaticStateCache if programs.layout.states else StaticCache
    return made(programs, sizes, relocation=relocation, given=given)
