"""Whether an NPU would take the static programs of a model: one for a token, one for a prompt."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import openvino as ov

from npu_compiler.openvino_core import openvino_core
from npu_compiler.readiness import Readiness, check_model
from npu_llm.entries.build import prepare
from npu_llm.entries.load_options import LoadOptions
from npu_llm.steps.static_layout import LONGEST, StaticSizes, StepSizes
from npu_llm.steps.static_programs import write_variant

__all__ = ["check_static_programs", "static_models"]


def check_static_programs(
    name_or_path: str | Path, options: LoadOptions, *, generation: str = "4000"
) -> tuple[Readiness, ...]:
    """Compares a model's static programs with the rules of the NPU's compiler.

    Args:
        name_or_path: see npu_llm.checkpoint.source.find_source.
        options: how to build it; the pipeline is the static one, and nothing is compared.
        generation: "3720" (Meteor Lake) or "4000" (Lunar Lake).

    Returns:
        What was found of the program for one token, and of that for the longest piece of a prompt,
        both with the smallest cache.

    Raises:
        npu_compiler.errors.OptionError: [option-value] a generation whose rules are not known.
        CaptureError: the model has no static programs.
    """
    return tuple(
        check_model(model, name=name, generation=generation)
        for name, model in static_models(name_or_path, options)
    )


def static_models(name_or_path: str | Path, options: LoadOptions) -> Iterator[tuple[str, ov.Model]]:
    """Yields a model's program for one token, and that for the longest piece of a prompt.

    Both have the smallest cache. Arguments and what is raised are those of check_static_programs.
    """
    options = dataclasses.replace(options, pipeline="static", verify="off")
    entry = prepare(name_or_path, options).entry
    layout = entry.static_layout
    assert layout is not None, "an entry of the static pipeline has its layout"
    sizes = StaticSizes(entry.context_length or LONGEST)
    with tempfile.TemporaryDirectory(prefix="npu-check-") as place:
        for step, tokens in (("decode", sizes.chunks[0]), ("prefill", sizes.chunks[-1])):
            shapes = layout.port_shapes(StepSizes(tokens, sizes.capacities[0], 1))
            path = write_variant(entry.model_path, Path(place) / step, shapes)
            name = f"{entry.name}, {step} of {tokens} in {sizes.capacities[0]}"
            yield name, openvino_core().read_model(path)
