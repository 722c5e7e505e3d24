"""Runs the programs of a model of images and text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from npu_llm.models.entry import Entry
from npu_llm.part_programs.loading import Programs
from npu_llm.vision_language.language_cache import LanguageCache, SessionLanguageCache
from npu_llm.vision_language.places import LANGUAGE
from npu_runtime import observe

__all__ = ["DynamicParts", "Parts", "parts_of"]


class Parts(Protocol):
    """A model's programs, each loaded when it is first needed."""

    @property
    def entry(self) -> Entry:
        """Where they are."""

    def run(self, name: str, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Runs a part without a cache on tensors by name; returns its results, on cpu."""

    def new_cache(self) -> LanguageCache:
        """Returns an empty cache of the language model."""


@dataclass(frozen=True)
class DynamicParts:
    """Programs for inputs of any size.

    Attributes:
        programs: the programs.
    """

    programs: Programs

    @property
    def entry(self) -> Entry:
        """Where they are."""
        return self.programs.entry

    def run(self, name: str, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Runs a part without a cache; see Parts.run."""
        program = self.programs.get(name)
        given = [
            tensors[port.name].detach().to("cpu", port.dtype).contiguous()
            for port in program.inputs
        ]
        with observe.span("prefill", name, batch=given[0].shape[0]):
            return list(program.run(given, output_device="cpu"))

    def new_cache(self) -> LanguageCache:
        """Returns an empty cache of the language model."""
        context = self.entry.about["context_length"]
        return SessionLanguageCache(self.programs.get(LANGUAGE), context=context)


def parts_of(programs: Any) -> Parts:
    """Returns what runs a model's programs; those of fixed sizes do so themselves."""
    return DynamicParts(programs) if isinstance(programs, Programs) else programs
