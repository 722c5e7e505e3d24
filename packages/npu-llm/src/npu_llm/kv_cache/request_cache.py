"""KV caches of the dynamic pipeline: one inference request, with or without recurrent states.

Keys and values stay inside the program; the cache counts them, and hides removed ones. A model with
states takes one token and returns the next states. States cannot be rolled back, so those before
each turn and before the last tokens are retained, which needs no copy because a step creates new
ones. Cropping the cache returns to the nearest states, and reads the tokens after them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from npu_llm.kv_cache.cache import Relocation, Slots, StepCache
from npu_llm.kv_cache.static_layout import KEY_POSITIONS, TOKEN_MASK
from npu_runtime import Program, Session

__all__ = ["SessionCache", "StateCache", "StateHistory", "describe", "dynamic_cache"]


class SessionCache(StepCache):
    """The cache of one generation, inside the program.

    Attributes:
        session: the program's session with the keys and values; see npu_runtime.Program.session.
    """

    def __init__(
        self,
        session: Session,
        *,
        relocation: Relocation = None,
        constants: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._constants = constants or {}
        self.session = session
        self._names = tuple(port.name for port in session.program.inputs)
        self._relocation: Relocation = relocation
        self._slots = Slots()
        self._is_broken = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of tokens in the cache, including padding."""
        return self._slots.length

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step; see StepCache.step.

        Raises:
            OptionError: [cache-rows] for a batch that does not match the cache's rows,
                [cache-broken] after an interrupted step.
        """
        self._check_sound()
        batch, tokens = values["input_ids"].shape
        inputs = {
            **values,
            **self._constants,
            "attention_mask": self._slots.mask(values["attention_mask"], self._relocation),
            KEY_POSITIONS: self._slots.key_positions(tokens),
            "beam_idx": self.next_rows(batch),
        }
        self._is_broken = True
        (logits,) = self.session.run([inputs[name] for name in self._names], output_device=device)
        self._batch = batch
        self._slots.append(tokens)
        self._rows = None
        self._is_broken = False
        return logits

    @property
    def is_broken(self) -> bool:
        """Whether a step was interrupted, so that the cache's contents are unknown."""
        return self._is_broken

    @property
    def is_croppable(self) -> bool:
        """Whether the last tokens can be removed while keeping the others.

        False after an interrupted step, or if the model numbers its tokens by slot without an input
        for it.
        """
        return self._relocation is not None and not self._is_broken

    @property
    def hidden_tokens(self) -> int:
        """Number of slots that removed tokens still occupy; 0 in a new cache."""
        return self._slots.hidden

    def reset(self) -> None:
        """Removes all tokens."""
        self.session.reset()
        super().reset()
        self._slots = Slots()
        self._is_broken = False

    def _keep(self, length: int) -> None:
        self._slots.crop(length)


# Limits of retained states: before steps of several tokens, before single-token steps, and in
# bytes.
_TURNS, _TOKENS, _BYTES = 8, 16, 256 << 20
_READ = "read"


class StateHistory:
    """A batch's states after its last token, some earlier ones, and the tokens themselves."""

    def __init__(self, sizes: Mapping[str, Sequence[int]]) -> None:
        """Starts before the first token.

        Args:
            sizes: sizes of each state, without the batch.
        """
        self._sizes = {name: tuple(one) for name, one in sizes.items()}
        self._states: list[torch.Tensor] = []  # empty before the first token
        self._read: list[torch.Tensor] = []
        self._turns: dict[int, list[torch.Tensor]] = {}
        self._tokens: dict[int, list[torch.Tensor]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the states, in the order of all lists of them."""
        return tuple(self._sizes)

    @property
    def read(self) -> torch.Tensor:
        """The tokens read: (3, batch, tokens), ids, positions and whether a token is valid."""
        return torch.cat(self._read, 2)

    @property
    def is_empty(self) -> bool:
        """Whether no token was read."""
        return not self._read

    def states(self, batch: int) -> list[torch.Tensor]:
        """Returns the states, (batch, *sizes) each: zeros before the first token."""
        return self._states or self._zeros(batch)

    def advance(self, described: torch.Tensor, states: Sequence[torch.Tensor]) -> None:
        """Records a step, and retains the previous states.

        Args:
            described: (3, batch, tokens), see `read`.
            states: the new states.
        """
        if self._states:
            size = sum(one.nbytes for one in self._states)
            is_turn = described.shape[2] > 1
            known, bound = (self._turns, _TURNS) if is_turn else (self._tokens, _TOKENS)
            known[sum(one.shape[2] for one in self._read)] = self._states
            while len(known) > max(1, min(bound, _BYTES // size)):
                del known[min(known)]
        self._states = list(states)
        self._read.append(described)

    def nearest(self, length: int) -> tuple[int, list[torch.Tensor]]:
        """Returns the latest retained states after at most `length` tokens, and their length."""
        known = {**self._tokens, **self._turns}
        start = max((one for one in known if one <= length), default=0)
        return start, known[start] if start else self._zeros(self._read[0].shape[1])

    def cut(self, length: int, states: Sequence[torch.Tensor]) -> None:
        """Removes all tokens except the first ones, after which the states were the given ones."""
        self._read = [self.read[:, :, :length]]
        self._states = list(states)
        for known in (self._turns, self._tokens):
            for one in [one for one in known if one >= length]:
                del known[one]

    def choose(self, rows: torch.Tensor) -> None:
        """Keeps the given rows, (batch,) int64, in their order; drops earlier states."""
        self._states = [one[rows] for one in self._states]
        self._read = [one[:, rows] for one in self._read]
        self._forget_earlier()

    def reset(self) -> None:
        """Removes all tokens."""
        self._states, self._read = [], []
        self._forget_earlier()

    def tensors(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns states and tokens of the given rows, (batch,) int64; empty without tokens."""
        held = zip(self._sizes, self._states, strict=True)
        return {name: one[rows] for name, one in held} | {_READ: self.read[:, rows]}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads the result of `tensors`; raises KeyError if something is missing."""
        self.reset()
        self._states = [tensors[name] for name in self._sizes]
        self._read = [tensors[_READ]]

    def _forget_earlier(self) -> None:
        self._turns.clear()
        self._tokens.clear()

    def _zeros(self, batch: int) -> list[torch.Tensor]:
        return [torch.zeros(batch, *sizes) for sizes in self._sizes.values()]


def describe(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns (3, batch, tokens) int64 on cpu for a step's tokens, see StateHistory.read."""
    ids, mask = values["input_ids"], values["attention_mask"]
    parts = (ids, values["position_ids"], mask[:, -ids.shape[1] :])
    return torch.stack([one.cpu() for one in parts])


class StateCache(SessionCache):
    """The cache of one generation: states in host memory, keys and values in the program.

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
        self._history = StateHistory(states)
        self._has_keys = "beam_idx" in self._names

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step, token by token; see StepCache.step.

        Raises:
            OptionError: see SessionCache.step.
        """
        self._check_sound()
        ids, mask = values["input_ids"], values["attention_mask"]
        batch = len(ids)
        rows = self.next_rows(batch)
        self._is_broken = True
        if self._rows is not None:
            self._history.choose(rows.long())
        described = describe(values)
        kept = values["logits_to_keep"].tolist()
        states = self._history.states(batch)
        logits, states = self._run(described, mask.cpu(), rows, kept, states)
        self._history.advance(described, states)
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
        states: list[torch.Tensor],
    ) -> tuple[dict[int, torch.Tensor], list[torch.Tensor]]:
        """Runs tokens; returns logits (batch, 1, vocabulary) of the kept ones, and states.

        Args:
            described: (3, batch, tokens), see StateHistory.read.
            mask: (batch, past + tokens).
            rows: program row that each row continues.
            kept: indices of the tokens whose logits are returned.
            states: states before the tokens.
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
                TOKEN_MASK: counts.contiguous(),
                KEY_POSITIONS: self._slots.key_positions(1),
                "beam_idx": rows,
                **dict(zip(self._history.names, states, strict=True)),
            }
            found, *states = self._called(inputs)
            self._slots.append(1)
            rows = torch.arange(len(ids), dtype=torch.int32)
            if wanted:
                logits[index] = found
        return logits, states

    def _called(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Runs the program, row by row if it accepts only one."""
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
        """The names of the inputs with one row per sequence."""
        return ("input_ids", "position_ids", TOKEN_MASK, *self._history.names)

    @property
    def is_croppable(self) -> bool:
        """Whether the last tokens can be removed: False only after an interrupted step."""
        return not self._is_broken

    def reset(self) -> None:
        """Removes all tokens."""
        super().reset()
        self._history.reset()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns states and tokens; empty if the program has keys and values."""
        if self._has_keys or self._history.is_empty:
            return {}
        return self._history.tensors(self.next_rows(self._held_rows).long())

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads the non-empty result of `tensors` from a cache of the same model."""
        self.reset()
        self._history.restore(tensors)
        _, self._batch, length = self._history.read.shape
        self._slots.append(length)

    def _keep(self, length: int) -> None:
        history = self._history
        read = history.read[:, :, :length]
        start, states = history.nearest(length if self._can_hide else 0)
        self._is_broken = True
        if start == 0:
            self.session.reset()
            self._slots = Slots()
        else:
            self._slots.crop(start)
        rows = torch.arange(read.shape[1], dtype=torch.int32)
        _, states = self._run(read[:, :, start:], read[2], rows, [], states)
        history.cut(length, states)
        self._is_broken = False

    @property
    def _can_hide(self) -> bool:
        """Whether the program can hide its last keys and values."""
        return not self._has_keys or self._relocation is not None


def dynamic_cache(
    program: Program,
    relocation: Relocation,
    states: Mapping[str, Sequence[int]],
    constants: Mapping[str, torch.Tensor],
) -> SessionCache:
    """Returns an empty cache; for the arguments see npu_llm.models.load.DynamicPipeline."""
    if states:
        return StateCache(
            program.session(), relocation=relocation, states=states, constants=constants
        )
    return SessionCache(program.session(), relocation=relocation, constants=constants)
