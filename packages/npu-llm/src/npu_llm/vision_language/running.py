"""Programs of a vision-language model.

In programs of fixed sizes, parts that read items independently run in chunks, the last one padded.
Patches of images are padded to a bucket, with the padding as a separate sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from npu_llm.errors import ContextError
from npu_llm.kv_cache.static_layout import StaticLayout, StaticSizes, StepSizes
from npu_llm.multi_part.running import DynamicParts, StaticParts, StepVariants
from npu_llm.vision_language.caches import (
    MASK,
    POSITIONS,
    LanguageCache,
    Port,
    SessionLanguageCache,
    StaticLanguageCache,
)
from npu_llm.vision_language.submodules import EMBED, HEAD, LANGUAGE
from npu_runtime import Program, observe

__all__ = ["DynamicVisionLanguage", "StaticVisionLanguage"]

_CHUNKS = (1, 16, 128)
_SMALLEST_CACHE = 256
_SMALLEST_PATCHES = 64
# Maximum patches of all images together: the cost of attention grows with their square.
_MAX_PATCHES = 16384


class DynamicVisionLanguage(DynamicParts):
    """Programs with dynamic shapes."""

    checked: ClassVar = {LANGUAGE: None}

    def new_cache(self, name: str = LANGUAGE) -> LanguageCache:
        """Returns an empty cache of the language model."""
        return SessionLanguageCache(self.get(name), context=self.entry.about["context_length"])


class StaticVisionLanguage(StaticParts):
    """Programs of fixed sizes."""

    def run(self, name: str, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Runs a part without a cache; see Parts.run."""
        about = self._static["parts"][name]
        given = {
            port: tensors[port].detach().to("cpu", getattr(torch, dtype))
            for port, dtype in about["dtypes"].items()
        }
        with observe.span("prefill", name, batch=next(iter(given.values())).shape[0]):
            if about["leading"] == 0:
                return self._run_packed(name, given, about["merge"])
            return self._run_each(name, given, about["leading"])

    def new_cache(self, name: str = LANGUAGE) -> LanguageCache:
        """Returns an empty cache of the language model."""
        about = self._static["steps"][name]
        steps = self._steps()
        ports = {
            port: Port(steps.layout.forms.get(port, (1, "whole")), about["adds"][port])
            for port in steps.layout.inputs
            if port == POSITIONS or port.partition(".")[0] == MASK
        }
        return StaticLanguageCache(
            steps,
            self._sizes(),
            relocation=about["relocation"],
            ports=ports,
            context=self.entry.about["context_length"],
        )

    def _load_first(self) -> None:
        self._steps().get(StepSizes(1, self._sizes().capacities[0], 1))
        for name in (EMBED, HEAD):
            self._get(name, 1)

    def _steps(self) -> StepVariants:
        layout = StaticLayout.from_dict(self._static["steps"][LANGUAGE]["layout"])
        return StepVariants(self, LANGUAGE, layout)

    def _sizes(self) -> StaticSizes:
        """Returns the sizes of the language model's programs."""
        limit, prompt = self.entry.about["context_length"], self._static["prompt"]
        chunks: tuple[int, ...] = _CHUNKS
        if self._static["steps"][LANGUAGE]["sees_ahead"]:  # a prompt is read in one step
            doubled = StaticSizes(limit, smallest=2 * _CHUNKS[-1]).capacities
            chunks = (*(one for one in _CHUNKS if one < doubled[0]), *doubled)
        smallest = min(_doubled(_SMALLEST_CACHE, self._static["checked"]), limit)
        sizes: StepSizes | None = self._only_size(LANGUAGE)
        if sizes is not None:
            alone = {1, sizes.tokens}
            if sizes.tokens < prompt:
                alone.add(next((one for one in chunks if one >= prompt), chunks[-1]))
            capacity = sizes.capacity
            return StaticSizes(capacity, chunks=sorted(alone), smallest=capacity)
        return StaticSizes(limit, chunks=chunks, smallest=smallest)

    def _run_each(
        self, name: str, given: Mapping[str, torch.Tensor], leading: int
    ) -> list[torch.Tensor]:
        """Runs a part that reads images or tokens independently, in chunks."""
        first = next(iter(given.values()))
        outer, dim = first.shape[:leading], leading - 1
        ones = [1] * dim
        flat = {
            port: tensor.reshape(*ones, -1, *tensor.shape[leading:])
            for port, tensor in given.items()
        }
        total, at = outer.numel(), 0
        forced = self._only_size(name)
        chunks = (forced,) if forced else _CHUNKS if leading == 2 else _CHUNKS[:1]
        pieces = []
        while at < total:
            size = next((one for one in chunks if one >= total - at), chunks[-1])
            count = min(size, total - at)
            program = self._get(name, size)
            rows = [
                _padded(flat[port.name].narrow(dim, at, count), dim, size)
                for port in program.inputs
            ]
            found = program.run(rows, output_device="cpu")
            pieces.append([result.narrow(dim, 0, count) for result in found])
            at += count
        joined = [torch.cat(one, dim) for one in zip(*pieces, strict=True)]
        return [result.reshape(*outer, *result.shape[leading:]) for result in joined]

    def _run_packed(
        self, name: str, given: Mapping[str, torch.Tensor], merge: int
    ) -> list[torch.Tensor]:
        """Runs an encoder of patches, padded to a bucket with a separate sequence."""
        count = next(len(one) for port, one in given.items() if self._dims(name, port)[0] == -1)
        if count > _MAX_PATCHES:
            raise ContextError(
                f"`pixel_values` must have at most {_MAX_PATCHES:,} patches in the static "
                f"pipeline, of all images together, got {count:,}. Pass fewer or smaller images.",
                code="context-overflow",
            )
        size = self._only_size(name) or _doubled(_SMALLEST_PATCHES * merge, count)
        program = self._get(name, size)
        filled = []
        for port in program.inputs:
            tensor, kind = given[port.name], self._dims(name, port.name)[0]
            length = _lengths(size, merge)[kind]
            missing = length - len(tensor)
            if kind == "sequences":  # padding with zeros
                more = tensor[-1:].expand(missing)
            elif kind == "merged":  # each keeps its index
                more = torch.arange(len(tensor), length)
            else:
                more = tensor.new_zeros(missing, *tensor.shape[1:])
            filled.append(torch.cat([tensor, more]).contiguous())
        found = program.run(filled, output_device="cpu")
        return [result[: len(result) * count // size].contiguous() for result in found]

    def _dims(self, name: str, port: str) -> list[int | str]:
        dims: list[int | str] = self._static["parts"][name]["ports"][port]
        return dims

    def _get(self, name: str, size: int) -> Program:
        """Returns the program of a part without a cache."""
        about = self._static["parts"][name]
        lengths = _lengths(size, about["merge"])
        shapes = {
            port: tuple(lengths.get(one, one) for one in dims)
            for port, dims in about["ports"].items()
        }
        return self.program(name, size, shapes)


def _lengths(size: int, merge: int) -> dict[int | str, int]:
    """Returns the dynamic sizes by name. Each sequence has at least one merged patch."""
    return {-1: size, "merged": size // merge, "sequences": size // merge + 1}


def _doubled(smallest: int, wanted: int) -> int:
    while smallest < wanted:
        smallest *= 2
    return smallest


def _padded(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    missing = size - tensor.shape[dim]
    if not missing:
        return tensor.contiguous()
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)
