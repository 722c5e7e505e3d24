"""The dynamic pipeline's cache of a generation with an encoder: state of the decoder's program."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from npu_llm.encoder_decoders.cross_cache import CrossCache, StepResult, equal_neighbours
from npu_llm.errors import OptionError
from npu_runtime import Program, observe

__all__ = ["SessionCrossCache"]


class SessionCrossCache(CrossCache):
    """Keys and values of a decoder's own attention, in its program; of cross-attention, as inputs.

    Rows that share a source, as beams do, share what cross-attention reads until it is passed to
    the program. Forgotten tokens are read again with the next ones: there are few in a decoder
    with an encoder, and its program needs no slots for that.
    """

    def __init__(
        self,
        bridge: Program,
        decoder: Program,
        *,
        outputs: tuple[str, ...],
        crossing: tuple[str, ...],
        positions: int | None,
    ) -> None:
        """Takes the programs.

        Args:
            bridge: computes what cross-attention reads.
            decoder: reads tokens.
            outputs: the names of the decoder's results.
            crossing: the names of the bridge's results.
            positions: how many tokens the decoder takes; None if it sets no limit.
        """
        super().__init__()
        self._positions = positions
        self._bridge = bridge
        self._session = decoder.session()
        self._inputs = tuple(port.name for port in decoder.inputs)
        self._outputs = outputs
        self._crossing = crossing
        self._sources: dict[str, torch.Tensor] = {}
        self._groups: torch.Tensor | None = None  # which source each row has
        self._ids = torch.zeros(0, 0, dtype=torch.int64)
        self._places = torch.zeros(0, 0, dtype=torch.int64)
        self._held = 0  # tokens that the program's state has, at most those of _ids

    @property
    def has_source(self) -> bool:
        """Whether the encoder's result was read."""
        return self._groups is not None

    def read(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Computes what cross-attention reads; see CrossCache.read."""
        groups, firsts = equal_neighbours(hidden, mask)
        with observe.span("prefill", "bridge", batch=len(firsts)):
            found = self._bridge.run([hidden[firsts].contiguous()], output_device="cpu")
        named = dict(zip(self._crossing, found, strict=True))
        self._sources = {
            name: tensor if len(firsts) == len(groups) else tensor[groups]
            for name, tensor in named.items()
        }
        if mask is not None:
            self._sources["attention_mask"] = mask.to("cpu", torch.int64).contiguous()
        self._groups = groups

    def next(
        self,
        ids: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> StepResult:
        """Reads tokens; see CrossCache.next."""
        past, (batch, tokens) = self.get_seq_length(), ids.shape
        self._check()
        self.check_positions(past + tokens)
        rows = self.next_rows(batch)
        self._follow(rows)
        if places is None:
            places = torch.arange(past, past + tokens) if mask is None else _counted(mask)[:, past:]
        if mask is None:
            mask = torch.ones(batch, past + tokens, dtype=torch.int64)
        places = places.expand(batch, tokens)
        ids = torch.cat([self._ids, ids], 1) if past else ids
        places = torch.cat([self._places, places], 1) if past else places
        if self._held == 0:
            self._session.reset()
            rows = torch.arange(batch, dtype=torch.int32)
        values = {
            "decoder_input_ids": ids[:, self._held :].contiguous(),
            "decoder_attention_mask": mask.to(torch.int64).contiguous(),
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
        """Returns how many tokens the cache holds, including padding."""
        return self._ids.shape[1]

    @property
    def is_croppable(self) -> bool:
        """Whether the last tokens can be forgotten; False after a step that was interrupted."""
        return not self.is_broken

    @property
    def is_broken(self) -> bool:
        """Whether a step was interrupted, so that the state's contents are unknown."""
        return self._held < 0

    def reset(self) -> None:
        """Forgets everything, the source as well."""
        super().reset()
        self._session.reset()
        self._sources, self._groups = {}, None
        self._ids = self._places = torch.zeros(0, 0, dtype=torch.int64)
        self._held = 0

    def _keep(self, length: int) -> None:
        self._ids, self._places = self._ids[:, :length], self._places[:, :length]
        self._held = 0

    def _follow(self, rows: torch.Tensor) -> None:
        """Puts what is kept beside the state into the order of the next step's rows."""
        if self._groups is None or self._rows is None:
            return
        order = rows.long()
        self._ids, self._places = self._ids[order], self._places[order]
        groups = self._groups[order]
        if not torch.equal(groups, self._groups):  # beams stay among those of their source
            self._sources = {name: each[order] for name, each in self._sources.items()}
        self._groups = groups

    def _check(self) -> None:
        if self.is_broken:
            raise OptionError(
                "CrossCache: must not be used after a step was interrupted, since its contents are "
                "unknown; got another step. Start from a new cache, or reset() this one.",
                code="cache-broken",
            )


def _counted(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(-1) - 1).clamp_min(0)
