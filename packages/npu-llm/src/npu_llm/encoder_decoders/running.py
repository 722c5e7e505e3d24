"""Runs the programs of a model with an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from npu_llm.encoder_decoders.cross_cache import CrossCache
from npu_llm.encoder_decoders.session_cross_cache import SessionCrossCache
from npu_runtime import Program, observe

__all__ = ["DynamicParts", "Parts", "plain"]


class Parts(Protocol):
    """A model's programs, each loaded when it is first needed."""

    def encode(
        self, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs the encoder.

        Args:
            inputs: by name, on cpu.

        Returns:
            Its last hidden states (batch, source, width) float32, and which of them count (batch,
            source) int64; None if all do.
        """

    def new_cache(self, decoder: str = "decoder") -> CrossCache:
        """Returns an empty cache for one of the decoders, "decoder" or "attending"."""


@dataclass(frozen=True)
class DynamicParts:
    """Programs for inputs of any size.

    Attributes:
        get: returns a program by its name.
        outputs: the names of each program's results that are not state, by the program's name.
        positions: how many tokens the decoder takes; None if it sets no limit.
    """

    get: Callable[[str], Program]
    outputs: Mapping[str, tuple[str, ...]]
    positions: int | None

    def encode(
        self, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs the encoder; see Parts.encode."""
        program = self.get("encoder")
        given = {name: plain(tensor) for name, tensor in inputs.items()}
        with observe.span("prefill", "encode", batch=next(iter(given.values())).shape[0]):
            found = program.run([given[port.name] for port in program.inputs], output_device="cpu")
        results = dict(zip(self.outputs["encoder"], found, strict=True))
        return results["hidden_states"], results.get("attention_mask", given.get("attention_mask"))

    def new_cache(self, decoder: str = "decoder") -> CrossCache:
        """Returns an empty cache for one of the decoders, "decoder" or "attending"."""
        return SessionCrossCache(
            self.get("bridge"),
            self.get(decoder),
            outputs=self.outputs[decoder],
            crossing=self.outputs["bridge"],
            positions=self.positions,
        )


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor as programs read it: contiguous, on the host, int64 or float32."""
    found = tensor.detach().to("cpu")
    return (found.float() if found.is_floating_point() else found.long()).contiguous()
