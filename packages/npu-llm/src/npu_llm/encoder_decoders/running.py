"""Programs of an encoder-decoder model.

Programs of fixed sizes come in a set for each bucket of source lengths. A source is padded to its
bucket, and its mask hides the padding. Rows run sequentially.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from npu_llm.encoder_decoders.caches import CrossCache, SessionCrossCache, StaticCrossCache
from npu_llm.kv_cache.static_layout import StaticLayout, StaticSizes, StepSizes
from npu_llm.multi_part.running import DynamicParts, Parts, StaticParts, StepVariants
from npu_runtime import observe

__all__ = ["DECODERS", "SOURCE_MASK", "DynamicEncoderDecoder", "StaticEncoderDecoder", "encode"]

# The parts that read tokens.
DECODERS = ("decoder", "attending")
# The decoder's input that masks padding in the encoder's output.
SOURCE_MASK = "source_mask"
# The smallest bucket of source tokens, and the smallest cache: for sentences in translation.
_SMALLEST = 64


def encode(
    parts: Parts, inputs: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Runs the encoder.

    Args:
        parts: the model's programs.
        inputs: by name, on cpu.

    Returns:
        Its last hidden states (batch, source, width) float32, and their mask (batch, source) int64;
        None if all are valid.
    """
    found = dict(zip(parts.outputs["encoder"], parts.run("encoder", inputs), strict=True))
    return found["hidden_states"], found.get("attention_mask", inputs.get("attention_mask"))


class DynamicEncoderDecoder(DynamicParts):
    """Programs with dynamic shapes."""

    first: ClassVar = ("encoder", "bridge", "decoder")
    checked: ClassVar = {name: ("encoder", "bridge", name) for name in DECODERS}

    def new_cache(self, name: str = "decoder") -> CrossCache:
        """Returns an empty cache for one of the decoders, "decoder" or "attending"."""
        return SessionCrossCache(
            partial(self.run, "bridge"),
            self.get(name),
            outputs=self.outputs[name],
            crossing=self.outputs["bridge"],
            positions=self.entry.about["positions"],
        )


@dataclass(frozen=True)
class _SourceSteps:
    """The sizes of a decoder's program: the length of its source, and those of a step."""

    length: int
    steps: StepSizes

    def __str__(self) -> str:
        return f"{self.length}-{self.steps}"


class StaticEncoderDecoder(StaticParts):
    """Programs of fixed sizes."""

    def run(self, name: str, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Runs the encoder or the bridge row by row; see Parts.run."""
        main = next(iter(tensors.values()))
        length = self._bucket(main.shape[1])
        program = self.program(name, length, self._shapes(name, length))
        found = []
        with observe.span("prefill", name, batch=len(main)):
            for row in range(len(main)):
                given = [
                    self._fit(tensors[port.name][row : row + 1], length) for port in program.inputs
                ]
                found.append(program.run(given, output_device="cpu"))
        results = [torch.cat(one) for one in zip(*found, strict=True)]
        if name == "encoder" and self._static["source"] is None:
            results = [one[:, : main.shape[1]].contiguous() for one in results]
        return results

    def new_cache(self, name: str = "decoder") -> CrossCache:
        """Returns an empty cache for one of the decoders, "decoder" or "attending"."""
        positions = self.entry.about["positions"]
        sizes = StaticSizes(positions, smallest=_SMALLEST, positions=positions)
        only = self._only_size(name)
        if only is not None:
            capacity = only.steps.capacity
            sizes = StaticSizes(capacity, chunks=(only.steps.tokens,), smallest=capacity)
        return StaticCrossCache(
            self._cross_inputs,
            partial(self._steps, name),
            sizes,
            relocation=self._static["steps"][name]["relocation"],
            positions=positions,
        )

    def _load_first(self) -> None:
        length = self._bucket(1)
        self._steps("decoder", 1).get(
            StepSizes(1, min(_SMALLEST, self.entry.about["positions"]), 1)
        )
        for name in ("encoder", "bridge"):
            self.program(name, length, self._shapes(name, length))

    def _bucket(self, length: int) -> int:
        """Returns the source length of the programs for a number of tokens, or for audio."""
        if self._trial is not None:
            size = self._trial[1]
            return int(size.length if isinstance(size, _SourceSteps) else size)
        lengths = StaticSizes(self.entry.about["source_positions"], smallest=_SMALLEST)
        return int(self._static["source"] or lengths.capacity(length))

    def _shapes(self, name: str, length: int) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of a part's inputs for a source of this length."""
        return {
            port: tuple(length if size == -1 else size for size in shape)
            for port, shape in self._static[name].items()
        }

    def _steps(self, name: str, source: int) -> StepVariants:
        """Returns a decoder's programs for an encoder output of this length."""
        length = self._bucket(source)
        layout = StaticLayout.from_dict(self._static["steps"][name]["layout"])
        layout = replace(layout, given=self._shapes("given", length))
        return StepVariants(self, name, layout, partial(_SourceSteps, length))

    def _cross_inputs(
        self, hidden: torch.Tensor, mask: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """Returns the decoder's inputs for one source by name."""
        found = self.run("bridge", {"encoder_hidden_states": hidden})
        named = dict(zip(self.outputs["bridge"], found, strict=True))
        if self._static["source"] is None:
            shown = torch.ones(hidden.shape[:2]) if mask is None else mask
            named[SOURCE_MASK] = self._fit(shown.long(), self._bucket(hidden.shape[1]))
        return named

    def _fit(self, tensor: torch.Tensor, length: int) -> torch.Tensor:
        """Pads a row of a source with dynamic length: (1, source) or (1, source, width)."""
        found = tensor.detach().to("cpu")
        found = (found.float() if found.is_floating_point() else found.long()).contiguous()
        if self._static["source"] is not None:
            return found
        missing = length - tensor.shape[1]
        return torch.nn.functional.pad(found, [0, 0] * (tensor.dim() - 2) + [0, missing])
