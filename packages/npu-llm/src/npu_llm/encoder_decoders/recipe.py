"""How a model with an encoder and a decoder becomes programs, and how they are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_llm.checkpoint.source import ModelSource
from npu_llm.encoder_decoders.loading import Programs, Recipe
from npu_llm.encoder_decoders.running import Parts
from npu_llm.entries.entry import REFERENCE
from npu_llm.entries.load_options import LoadOptions
from npu_llm.progress import Progress

__all__ = ["parts_of", "recipe"]

_BEFORE = ("encoder", "bridge")


def recipe(auto: Any) -> Recipe:
    """Returns the recipe for models of one of transformers' classes."""

    def fill(folder: Path, source: ModelSource, options: LoadOptions, progress: Progress) -> None:
        from npu_llm.encoder_decoders.building import fill_entry

        fill_entry(folder, source, options, progress, auto=auto)

    checked = {name: (*_BEFORE, name) for name in ("decoder", "attending")}
    return Recipe(auto, fill, (*_BEFORE, "decoder"), checked, _check)


def parts_of(programs: Programs) -> Parts:
    """Returns what runs a model's programs."""
    return Parts(programs.get, programs.outputs, programs.entry.about["positions"])


def _check(programs: Programs, decoder: str) -> str | None:
    # Heavy, and not needed for a start from the cache.
    from npu_llm.encoder_decoders.reference import check_parts, read_reference

    reference = read_reference(programs.entry.folder / REFERENCE)
    return check_parts(parts_of(programs), reference, decoder=decoder)
