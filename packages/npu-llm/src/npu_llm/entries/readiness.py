"""The static programs of a model, one for a token and one for a prompt, seen without an NPU."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov

from npu_compiler.openvino_core import openvino_core
from npu_compiler.readiness import Readiness, check_model
from npu_compiler.time_bound import TimeBound, bound_model
from npu_compiler.time_bound.generations import generation_figures
from npu_llm.entries.build import prepare
from npu_llm.entries.load_options import LoadOptions
from npu_llm.steps.static_layout import StepSizes
from npu_llm.steps.static_programs import write_variant

__all__ = [
    "GenerationBound",
    "StaticProgram",
    "bound_static_programs",
    "check_static_programs",
    "static_programs",
]


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
        check_model(program.model, name=program.name, generation=generation)
        for program in static_programs(name_or_path, options)
    )


def bound_static_programs(
    name_or_path: str | Path, options: LoadOptions, *, generation: str = "4000"
) -> GenerationBound:
    """Computes how fast a model cannot be on an NPU, from published figures.

    Args:
        name_or_path: see npu_llm.checkpoint.source.find_source.
        options: as of check_static_programs.
        generation: "3720" (Meteor Lake) or "4000" (Lunar Lake).

    Raises:
        npu_compiler.errors.OptionError: [option-value] a generation without published figures.
        CaptureError: the model has no static programs.
    """
    figures = generation_figures(generation)
    programs = tuple(static_programs(name_or_path, options))
    decode, prefill = (
        bound_model(program.model, name=program.name, generation=figures) for program in programs
    )
    return GenerationBound(decode, prefill, programs[1].tokens)


@dataclass(frozen=True)
class GenerationBound:
    """What published figures allow a model at best.

    Attributes:
        decode: of the program for one token.
        prefill: of the program for a piece of a prompt.
        prompt_tokens: tokens of that piece.
    """

    decode: TimeBound
    prefill: TimeBound
    prompt_tokens: int

    @property
    def most_tokens_per_s(self) -> float:
        """Upper bound of decoding one sequence."""
        return 1 / self.decode.seconds

    @property
    def least_ttft_s(self) -> float:
        """Lower bound of the time to the first token, of a prompt of `prompt_tokens`."""
        return self.prefill.seconds

    def as_dict(self) -> dict[str, Any]:
        """Returns everything as what JSON can hold."""
        return {
            "most_tokens_per_s": self.most_tokens_per_s,
            "least_ttft_s": self.least_ttft_s,
            "prompt_tokens": self.prompt_tokens,
            "decode": self.decode.as_dict(),
            "prefill": self.prefill.as_dict(),
        }

    def __str__(self) -> str:
        return (
            f"{self.decode}\n\n{self.prefill}\n\n"
            f"at most {self.most_tokens_per_s:,.3g} tokens/s; first token of a prompt of "
            f"{self.prompt_tokens} after at least {self.least_ttft_s * 1e3:,.3g} ms: bounds, not "
            "measurements"
        )


@dataclass(frozen=True)
class StaticProgram:
    """A program of the static pipeline.

    Attributes:
        name: of the model, with the sizes.
        tokens: that it takes in one run.
        model: with a cache of the smallest size.
    """

    name: str
    tokens: int
    model: ov.Model


def static_programs(name_or_path: str | Path, options: LoadOptions) -> Iterator[StaticProgram]:
    """Yields a model's program for one token, and that for the longest piece of a prompt.

    Arguments and what is raised are those of check_static_programs.
    """
    options = dataclasses.replace(options, pipeline="static", verify="off")
    entry = prepare(name_or_path, options).entry
    layout = entry.static_layout
    assert layout is not None, "an entry of the static pipeline has its layout"
    sizes = entry.static_sizes
    with tempfile.TemporaryDirectory(prefix="npu-check-") as place:
        for step, tokens in (("decode", sizes.chunks[0]), ("prefill", sizes.chunks[-1])):
            shapes = layout.port_shapes(StepSizes(tokens, sizes.capacities[0], 1))
            path = write_variant(entry.model_path, Path(place) / step, shapes)
            name = f"{entry.name}, {step} of {tokens}"
            if sizes.capacities[0]:
                name += f" in {sizes.capacities[0]}"
            # OpenVINO maps the file, which stays readable after its folder is gone.
            yield StaticProgram(name, tokens, openvino_core().read_model(path))
