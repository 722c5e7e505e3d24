"""How a model with an encoder and a decoder becomes programs, and how they are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_compiler.verification.result import Verdict
from npu_llm.checkpoint.source import ModelSource
from npu_llm.choices import PipelineName, Verify
from npu_llm.encoder_decoders.parts import DECODERS
from npu_llm.encoder_decoders.running import DynamicParts, Parts
from npu_llm.models.entry import REFERENCE, Entry
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.static_programs import load_variant
from npu_llm.part_programs.loading import Programs, Recipe
from npu_llm.precision import compile_options
from npu_llm.progress import Progress

__all__ = ["parts_of", "recipe"]

_BEFORE = ("encoder", "bridge")


def recipe(auto: Any) -> Recipe:
    """Returns the recipe for models of one of transformers' classes."""

    def fill(
        folder: Path,
        source: ModelSource,
        options: LoadOptions,
        progress: Progress,
        pipeline: PipelineName,
    ) -> None:
        from npu_llm.encoder_decoders.building import fill_entry

        fill_entry(folder, source, options, progress, auto=auto, pipeline=pipeline)

    checked = {name: (*_BEFORE, name) for name in DECODERS}
    return Recipe(auto, fill, (*_BEFORE, "decoder"), checked, _check, _start_static)


def parts_of(programs: Programs | Parts) -> Parts:
    """Returns what runs a model's programs; those of fixed sizes do so themselves."""
    if not isinstance(programs, Programs):
        return programs
    return DynamicParts(programs.get, programs.outputs, programs.entry.about["positions"])


def _start_static(entry: Entry, verify: Verify) -> tuple[Parts, bool, Verdict]:
    # Late, as its programs are: the dynamic pipeline needs none of it.
    from npu_llm.encoder_decoders.static_running import StaticParts

    load = load_variant(entry.name, compile_options(entry.precision))
    static = StaticParts(entry, load, when=verify)
    return static, *static.start()


def _check(programs: Programs, decoder: str) -> str | None:
    # Heavy, and not needed for a start from the cache.
    from npu_llm.encoder_decoders.reference import check_parts
    from npu_llm.part_programs.reference import read_reference

    reference = read_reference(programs.entry.folder / REFERENCE)
    return check_parts(parts_of(programs), reference, decoder=decoder)
