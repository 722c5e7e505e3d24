"""How a model of images and text becomes programs, and how these are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_llm.checkpoint.source import ModelSource
from npu_llm.entries.entry import REFERENCE
from npu_llm.entries.load_options import LoadOptions
from npu_llm.part_programs.loading import Programs, Recipe
from npu_llm.progress import Progress
from npu_llm.steps.pipelines import PipelineName
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
        _: PipelineName,
    ) -> None:
        # Heavy, and not needed for a start from the cache, as is what checks programs.
        from npu_llm.vision_language.building import fill_entry

        fill_entry(folder, source, options, progress, auto=auto)

    def check(programs: Programs, _: str) -> str | None:
        from npu_llm.part_programs.reference import read_reference
        from npu_llm.vision_language.reference import check_model

        reference = read_reference(programs.entry.folder / REFERENCE)
        return check_model(ours.on_programs(programs), reference)

    return Recipe(auto, fill, None, {LANGUAGE: None}, check)
