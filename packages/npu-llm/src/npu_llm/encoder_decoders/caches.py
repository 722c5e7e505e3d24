"""CrossCache: the KV cache of a decoder with cross-attention."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from npu_llm.errors import ContextError
from npu_llm.kv_cache.cache import Relocation, StepCache, run_step
from npu_llm.kv_cache.static import StaticCache, StepPrograms
from npu_llm.kv_cache.static_layout import StaticSizes
from npu_runtime import Program, observe

__all__ = ["CrossCache", "SessionCrossCache", "StaticCrossCache", "StepResult"]


@dataclass(frozen=True)
class StepResult:
    """The results of a step.

    Attributes:
        logits: (batch, tokens, vocabulary) float32.
        attentions: per layer (batch, heads, tokens, source), if the program returns them.
    """

    logits: torch.Tensor
    attentions: tuple[torch.Tensor, ...]


class CrossCache(StepCache):
    """Keys and values of a decoder's self-attention and cross-attention.

    Those of cross-attention are computed once, by `read`, before the first token. Rows with the
    same source, such as beams, share them.

    Attributes:
        has_source: whether the encoder's output was read.
    """

    has_source = False
    # Maximum number of decoder tokens; None without a limit.
    _positions: int | None = None

    @abstractmethod
    def read(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Computes the inputs of cross-attention.

        Args:
            hidden: the encoder's output (batch, source, width) float32, on cpu.
            mask: 1 for valid positions (batch, source); None if all are valid.
        """

    def next(
        self,
        ids: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> StepResult:
        """Runs tokens through the decoder.

        Args:
            ids: (batch, tokens) int64, on cpu.
            mask: 1 for valid tokens (batch, past + tokens); None if all are valid.
            places: the tokens' positions (batch, tokens); derived from the mask by default.

        Raises:
            OptionError: [cache-rows] for a batch that does not match the cache's rows,
                [cache-broken] after an interrupted step.
            ContextError: [context-overflow] for more tokens than the decoder supports.
        """
        past, (batch, tokens) = self.get_seq_length(), ids.shape
        self._check_sound()
        if self._positions is not None and past + tokens > self._positions:
            raise ContextError(
                f"`decoder_input_ids` must be at most {self._positions:,} tokens for the decoder, "
                f"got {past + tokens:,}. Request fewer new tokens.",
                code="context-overflow",
            )
        if mask is None:
            mask = torch.ones(batch, past + tokens, dtype=torch.int64)
        mask = mask.to(torch.int64).contiguous()
        if places is None:
            places = (mask.cumsum(-1) - 1).clamp_min(0)[:, past:]
        return self._read_tokens(ids, mask, places.expand(batch, tokens))

    @abstractmethod
    def _read_tokens(
        self, ids: torch.Tensor, mask: torch.Tensor, places: torch.Tensor
    ) -> StepResult:
        """Runs tokens with their mask and positions; see next."""


class SessionCrossCache(CrossCache):
    """Keys and values of self-attention, in the program; those of cross-attention, as inputs.

    Removed tokens are recomputed with the next ones: decoders of such models have few, and this way
    the program needs no slots.
    """

    def __init__(
        self,
        bridge: Callable[[Mapping[str, torch.Tensor]], Sequence[torch.Tensor]],
        decoder: Program,
        *,
        outputs: tuple[str, ...],
        crossing: tuple[str, ...],
        positions: int | None,
    ) -> None:
        """Stores the programs.

        Args:
            bridge: computes the inputs of cross-attention.
            decoder: runs tokens.
            outputs: names of the decoder's results.
            crossing: names of the bridge's results.
            positions: maximum number of decoder tokens; None without a limit.
        """
        super().__init__()
        self._positions = positions
        self._bridge = bridge
        self._session = decoder.session()
        self._inputs = tuple(port.name for port in decoder.inputs)
        self._outputs = outputs
        self._crossing = crossing
        self._sources: dict[str, torch.Tensor] = {}
        self._groups: torch.Tensor | None = None  # index of each row's source
        self._ids = torch.zeros(0, 0, dtype=torch.int64)
        self._places = torch.zeros(0, 0, dtype=torch.int64)
        self._held = 0  # tokens in the program's state, at most those of _ids

    def read(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Computes the inputs of cross-attention; see CrossCache.read."""
        groups, firsts = _sources(hidden, mask)
        found = self._bridge({"encoder_hidden_states": hidden[firsts]})
        named = dict(zip(self._crossing, found, strict=True))
        self._sources = {
            name: tensor if len(firsts) == len(groups) else tensor[groups]
            for name, tensor in named.items()
        }
        if mask is not None:
            self._sources["attention_mask"] = mask.to("cpu", torch.int64).contiguous()
        self._groups, self.has_source = groups, True

    def _read_tokens(
        self, ids: torch.Tensor, mask: torch.Tensor, places: torch.Tensor
    ) -> StepResult:
        past, (batch, tokens) = self.get_seq_length(), ids.shape
        rows = self.next_rows(batch)
        self._follow(rows)
        ids = torch.cat([self._ids, ids], 1) if past else ids
        places = torch.cat([self._places, places], 1) if past else places
        if self._held == 0:
            self._session.reset()
            rows = torch.arange(batch, dtype=torch.int32)
        values = {
            "decoder_input_ids": ids[:, self._held :].contiguous(),
            "decoder_attention_mask": mask,
            "decoder_position_ids": places[:, self._held :].contiguous(),
            "beam_idx": rows,
            **self._sources,
        }
        held, self._held = self._held, -1
        phase = "decode" if past else "prefill"
        with observe.span(phase, f"{phase} {tokens} tokens", batch=batch, tokens=tokens, past=past):
            found = self._session.run([values[name] for name in self._inputs], output_device="cpu")
        self._ids, self._places, self._rows, self._batch = ids, places, None, batch
        self._held = ids.shape[1]
        named = dict(zip(self._outputs, found, strict=True))
        logits = named.pop("logits")
        again = past - held
        return StepResult(logits[:, again:], tuple(each[:, :, again:] for each in named.values()))

    def step(self, values: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
        """Runs a step on tokens without padding; see StepCache.step."""
        return self.next(values["input_ids"].to("cpu")).logits.to(device)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of tokens in the cache, including padding."""
        return self._ids.shape[1]

    @property
    def is_croppable(self) -> bool:
        """Whether the last tokens can be removed; False after an interrupted step."""
        return not self.is_broken

    @property
    def is_broken(self) -> bool:
        """Whether a step was interrupted, so that the state's contents are unknown."""
        return self._held < 0

    def reset(self) -> None:
        """Removes all tokens and the source."""
        super().reset()
        self._session.reset()
        self._sources, self._groups, self.has_source = {}, None, False
        self._ids = self._places = torch.zeros(0, 0, dtype=torch.int64)
        self._held = 0

    def _keep(self, length: int) -> None:
        self._ids, self._places = self._ids[:, :length], self._places[:, :length]
        self._held = 0

    def _follow(self, rows: torch.Tensor) -> None:
        """Reorders tensors outside the state to match the next step's rows."""
        if self._groups is None or self._rows is None:
            return
        order = rows.long()
        self._ids, self._places = self._ids[order], self._places[order]
        groups = self._groups[order]
        if not torch.equal(groups, self._groups):  # beams keep their source
            self._sources = {name: each[order] for name, each in self._sources.items()}
        self._groups = groups


class StaticCrossCache(CrossCache, StaticCache):
    """Keys and values in host memory, used by programs of fixed sizes."""

    def __init__(
        self,
        bridge: Callable[[torch.Tensor, torch.Tensor | None], Mapping[str, torch.Tensor]],
        decoder: Callable[[int], StepPrograms],
        sizes: StaticSizes,
        *,
        relocation: Relocation,
        positions: int,
    ) -> None:
        """Creates an empty cache.

        Args:
            bridge: computes, from hidden states (1, length, width) and their mask, the decoder's
                inputs for one source, by name.
            decoder: returns the decoder programs for an encoder output of a length.
            sizes: their sizes.
            relocation: how they identify valid slots.
            positions: maximum number of decoder tokens.
        """
        StaticCache.__init__(self, decoder(1), sizes, relocation=relocation)
        self._bridge = bridge
        self._decoder = decoder
        self._positions = positions
        # Per row and chunk of the running step.
        self._noted: list[list[Sequence[torch.Tensor]]] = []

    def read(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Computes the inputs of cross-attention; see CrossCache.read."""
        groups, firsts = _sources(hidden, mask)
        found = [
            self._bridge(hidden[row : row + 1], None if mask is None else mask[row : row + 1])
            for row in firsts
        ]
        self._programs = self._decoder(hidden.shape[1])
        self._given = [found[group] for group in groups.tolist()]
        self.has_source = True

    def _read_tokens(
        self, ids: torch.Tensor, mask: torch.Tensor, places: torch.Tensor
    ) -> StepResult:
        batch, tokens = ids.shape
        values = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": places,
            "logits_to_keep": torch.arange(tokens),
        }
        self._noted = [[] for _ in range(batch)]
        logits = run_step(self, values, past=self.get_seq_length(), device="cpu")
        # Chunks are concatenated along the tokens, rows along the batch, for each layer.
        rows = [[torch.cat(one, 2) for one in zip(*row, strict=True)] for row in self._noted]
        return StepResult(logits, tuple(torch.cat(one) for one in zip(*rows, strict=True)))

    def reset(self) -> None:
        """Removes all tokens and the source."""
        super().reset()
        self._given, self.has_source = (), False

    def _note(self, row: int, results: Sequence[torch.Tensor], count: int) -> None:
        self._noted[row].append([one[:, :, :count] for one in results])


def _sources(hidden: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, list[int]]:
    """Returns the index of each row's source, and the first row of each source."""
    groups, firsts = [], []
    for row in range(hidden.shape[0]):
        is_same = row > 0 and torch.equal(hidden[row], hidden[row - 1])
        if is_same and mask is not None:
            is_same = torch.equal(mask[row], mask[row - 1])
        if not is_same:
            firsts.append(row)
        groups.append(len(firsts) - 1)
    return torch.tensor(groups), firsts
