"""How a model of images and text becomes programs, and how these are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_compiler.verification.result import Verdict
from npu_llm.checkpoint.source import ModelSource
from npu_llm.choices import PipelineName, Verify
from npu_llm.models.entry import REFERENCE, Entry
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.static_programs import load_variant
from npu_llm.part_programs.loading import Programs, Recipe
from npu_llm.precision import compile_options
from npu_llm.progress import Progress
from npu_llm.vision_language.places import LANGUAGE

__all__ = ["recipe"]


def recipe(ours: Any, auto: Any) -> Recipe:
    """Returns the recipe for models of a class.

    Args:
        ours: NPUModelForImageTextToText, or a subclass.
        auto: transformers' class for the same task.
    """

    def fill(
        folder: Path,
        source: ModelSource,
        options: LoadOptions,
        progress: Progress,
        pipeline: PipelineName,
    ) -> None:
        # Heavy, and not needed for a start from the cache, as is what checks programs.
        from npu_llm.vision_language.building import fill_entry

        fill_entry(folder, source, options, progress, auto=auto, pipeline=pipeline)

    def compare(programs: Any, path: Path) -> str | None:
        from npu_llm.part_programs.reference import read_reference
        from npu_llm.vision_language.reference import check_model

        return check_model(ours.on_programs(programs), read_reference(path))

    def check(programs: Programs, _: str) -> str | None:
        return compare(programs, programs.entry.folder / REFERENCE)

    def start_static(entry: Entry, verify: Verify) -> tuple[Any, bool, Verdict]:
        # Late, as its programs are: the dynamic pipeline needs none of it.
        from npu_llm.vision_language.static.running import StaticParts

        load = load_variant(entry.name, compile_options(entry.precision))
        parts = StaticParts(entry, load, when=verify, check=compare)
        return parts, *parts.start()

    return Recipe(auto, fill, None, {LANGUAGE: None}, check, start_static)
