"""The cache of a model with states: they cannot be cut back, so copies of earlier ones are kept.

A program takes one token and returns the states after it; keys and values, if it has some, stay
inside it. The states before each turn and before the last tokens are kept, which costs no copy: a
step makes new ones. Cutting the cache goes back to the nearest of them, and reads the tokens that
come after it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from npu_llm.steps.session_cache import SessionCache
from npu_llm.steps.slots import KEY_POSITIONS, Relocation
from npu_runtime import Session

__all__ = ["StateCache"]

_TOKEN_MASK = "token_mask"
# How many earlier states are kept: before steps of several tokens, before those of one, and bytes.
_TURNS, _TOKENS, _BYTES = 8, 16, 256 << 20
_READ = "read"


class StateCache(SessionCache):
    """The cache of one generation: states in the host's memory, keys and values in the program.

    Attributes:
        session: see SessionCache.
    """

    def __init__(
        self,
        session: Session,
        *,
        relocation: Relocation = None,
        states: Mapping[str, Sequence[int]],
        constants: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__(session, relocation=relocation, constants=constants)
        self._sizes = {name: tuple(sizes) for name, sizes in states.items()}
        self._has_keys = "beam_idx" in self._names
        self._states: list[torch.Tensor] = []  # empty before the first token
        # What was read: (3, batch, tokens), ids, positions and whether a token counts.
        self._read: list[torch.Tensor] = []
        self._turns: dict[int, list[torch.Tensor]] = {}
        self._tokens: dict[int, list[torch.Tensor]] = {}

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step, token by token; see StepCache.step.

        Raises:
            OptionError: as SessionCache.step does.
        """
        self._check_sound()
        ids, mask = values["input_ids"], values["attention_mask"]
        batch, tokens = ids.shape
        rows = self.next_rows(batch)
        self._is_broken = True
        if self._rows is not None:
            chosen = rows.long()
            self._states = [one[chosen] for one in self._states]
            self._read = [one[:, chosen] for one in self._read]
            self._forget_earlier()
        self._remember(tokens)
        described = torch.stack([ids, values["position_ids"], mask[:, -tokens:]]).cpu()
        kept = values["logits_to_keep"].tolist()
        logits = self._run(described, mask.cpu(), rows, kept)
        self._read.append(described)
        self._batch = batch
        self._rows = None
        self._is_broken = False
        return torch.cat([logits[index] for index in kept], 1).to(device)

    def _run(
        self,
        described: torch.Tensor,
        mask: torch.Tensor,
        rows: torch.Tensor,
        kept: Sequence[int],
    ) -> dict[int, torch.Tensor]:
        """Reads tokens; returns logits (batch, 1, vocabulary) of those that are kept.

        Args:
            described: (3, batch, tokens), see `_read`.
            mask: (batch, past + tokens).
            rows: which of the program's rows each row continues.
            kept: indices of tokens.
        """
        logits = {}
        past = self._slots.length
        for index in range(described.shape[2]):
            ids, positions, counts = described[:, :, index : index + 1].unbind(0)
            seen = mask[:, : past + index + 1].contiguous()
            wanted = [0] if index in kept else []
            inputs = {
                **self._constants,
                "input_ids": ids.contiguous(),
                "attention_mask": self._slots.mask(seen, self._relocation),
                "position_ids": positions.contiguous(),
                "logits_to_keep": torch.tensor(wanted, dtype=torch.int64),
                _TOKEN_MASK: counts.contiguous(),
                KEY_POSITIONS: self._slots.key_positions(1),
                "beam_idx": rows,
                **dict(zip(self._sizes, self._states or self._zeros(len(ids)), strict=True)),
            }
            found, *self._states = self._called(inputs)
            self._slots.append(1)
            rows = torch.arange(len(ids), dtype=torch.int32)
            if wanted:
                logits[index] = found
        return logits

    def _called(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Runs the program, row by row if it takes a single one."""
        first = self.session.program.inputs[self._names.index("input_ids")]
        batch = len(inputs["input_ids"])
        if first.shape[0] != 1 or batch == 1:
            return self.session.run([inputs[name] for name in self._names], output_device="cpu")
        found = []
        for row in range(batch):
            given = {**inputs, **{name: inputs[name][row : row + 1] for name in self._by_row}}
            run = self.session.run([given[name] for name in self._names], output_device="cpu")
            found.append(run)
        return [torch.cat(parts) for parts in zip(*found, strict=True)]

    @property
    def _by_row(self) -> tuple[str, ...]:
        """The inputs that have a row for each sequence."""
        return ("input_ids", "position_ids", _TOKEN_MASK, *self._sizes)

    @property
    def is_croppable(self) -> bool:
        """Whether the last tokens can be forgotten: always, but after an interrupted step."""
        return not self._is_broken

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._states, self._read = [], []
        self._forget_earlier()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns states and tokens; empty if the program holds keys and values."""
        if self._has_keys or not self._states:
            return {}
        held = zip(self._sizes, self._states, strict=True)
        return {**dict(held), _READ: torch.cat(self._read, 2)}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads what `tensors` of a cache of the same model returned, if it was not empty."""
        self.reset()
        self._states = [tensors[name] for name in self._sizes]
        self._read = [tensors[_READ]]
        self._batch = self._read[0].shape[1]
        self._slots.append(self._read[0].shape[2])

    def _keep(self, length: int) -> None:
        known = {**self._tokens, **self._turns} if self._can_hide else {}
        start = max((one for one in known if one <= length), default=0)
        read = torch.cat(self._read, 2)[:, :, :length]
        rows = torch.arange(read.shape[1], dtype=torch.int32)
        self._is_broken = True
        if start == 0:
            earlier = self._rows
            self.reset()
            self._is_broken, self._rows, self._batch = True, earlier, read.shape[1]
        else:
            self._states = known[start]
            self._slots.crop(start)
        self._run(read[:, :, start:], read[2], rows, [])
        self._read = [read]
        for known in (self._turns, self._tokens):
            for one in [one for one in known if one >= length]:
                del known[one]
        self._is_broken = False

    @property
    def _can_hide(self) -> bool:
        """Whether the program can do without the last keys and values that it holds."""
        return not self._has_keys or self._relocation is not None

    def _remember(self, tokens: int) -> None:
        """Keeps the states before a step of so many tokens."""
        if not self._states:
            return
        size = sum(one.nbytes for one in self._states)
        known, bound = (self._turns, _TURNS) if tokens > 1 else (self._tokens, _TOKENS)
        known[self._slots.length] = self._states
        while len(known) > max(1, min(bound, _BYTES // size)):
            del known[min(known)]

    def _forget_earlier(self) -> None:
        self._turns.clear()
        self._tokens.clear()

    def _zeros(self, batch: int) -> list[torch.Tensor]:
        return [torch.zeros(batch, *sizes) for sizes in self._sizes.values()]
