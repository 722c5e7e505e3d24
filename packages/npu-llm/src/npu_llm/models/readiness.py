"""A model's static programs for one token and for a prompt, checked without an NPU."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov

from npu_compiler.openvino_core import openvino_core
from npu_compiler.readiness import Readiness, check_model
from npu_compiler.roofline import TimeEstimate, estimate_model
from npu_compiler.target_compiler import ESTIMATE_NOTE, find_target
from npu_llm.kv_cache.static_layout import StepSizes
from npu_llm.models.build import prepare
from npu_llm.models.entry import Entry, is_exported, open_exported
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.program_form import form_of
from npu_llm.models.static_programs import rewriting, write_variant
from npu_llm.progress import TARGET_STAGES, Progress

__all__ = [
    "GenerationEstimate",
    "StaticProgram",
    "check_static_programs",
    "estimate_static_programs",
    "static_programs",
]


def check_static_programs(
    name_or_path: str | Path,
    options: LoadOptions,
    *,
    target: str = "lunar-lake",
    rules_only: bool = False,
) -> tuple[Readiness, ...]:
    """Checks whether an NPU's compiler accepts a model's static programs.

    Args:
        name_or_path: an exported folder, or see npu_llm.checkpoint.source.find_source.
        options: build options; the pipeline is the static one, and nothing is compared.
        target: the NPU, such as "lunar-lake" or "4000".
        rules_only: whether to skip the compiler, which takes minutes on first use.

    Returns:
        Checks of the program for one token, and of the one for the longest chunk of a prompt, both
        with the smallest cache.

    Raises:
        npu_compiler.errors.OptionError: [unknown-target] if there is no such NPU generation.
        CaptureError: if the model has no static programs.
        OptionError: [exported-pipeline], [exported-dtype] if an exported folder has another
            pipeline or precision.
    """
    find_target(target)
    return tuple(
        check_model(
            program.model,
            name=program.name,
            target=target,
            rules_only=rules_only,
            options=program.options,
        )
        for program in static_programs(name_or_path, options, target=target)
    )


def estimate_static_programs(
    name_or_path: str | Path, options: LoadOptions, *, target: str = "lunar-lake"
) -> GenerationEstimate:
    """Estimates a model's speed on an NPU with its compiler; nothing is measured.

    Args:
        name_or_path: see npu_llm.checkpoint.source.find_source.
        options: see check_static_programs.
        target: see check_static_programs.

    Raises:
        npu_compiler.errors.OptionError: [unknown-target] if there is no such NPU generation.
        CaptureError: if the model has no static programs.
    """
    find_target(target)
    programs = tuple(static_programs(name_or_path, options, target=target))
    decode, prefill = (
        estimate_model(program.model, name=program.name, target=target, options=program.options)
        for program in programs
    )
    return GenerationEstimate(decode, prefill, programs[1].tokens)


@dataclass(frozen=True)
class GenerationEstimate:
    """The compiler's estimate of a model's speed, and bounds from published figures.

    Attributes:
        decode: estimate of the program for one token.
        prefill: estimate of the program for a chunk of a prompt.
        prompt_tokens: tokens of that chunk.
    """

    decode: TimeEstimate
    prefill: TimeEstimate
    prompt_tokens: int

    @property
    def tokens_per_s(self) -> float | None:
        """The compiler's estimate for decoding one sequence; None without one."""
        return None if self.decode.seconds is None else 1 / self.decode.seconds

    @property
    def most_tokens_per_s(self) -> float | None:
        """Upper bound for decoding one sequence; None without published figures."""
        return None if self.decode.bound is None else 1 / self.decode.bound.seconds

    @property
    def least_ttft_s(self) -> float | None:
        """Lower bound of the time to first token, for a prompt of `prompt_tokens`."""
        return None if self.prefill.bound is None else self.prefill.bound.seconds

    def as_dict(self) -> dict[str, Any]:
        """Returns a dictionary for JSON."""
        return {
            "tokens_per_s": self.tokens_per_s,
            "ttft_s": self.prefill.seconds,
            "most_tokens_per_s": self.most_tokens_per_s,
            "least_ttft_s": self.least_ttft_s,
            "prompt_tokens": self.prompt_tokens,
            "decode": self.decode.as_dict(),
            "prefill": self.prefill.as_dict(),
        }

    def __str__(self) -> str:
        lines = [f"{self.decode}\n\n{self.prefill}\n"]
        prompt = f"first token of a prompt of {self.prompt_tokens} after"
        if self.tokens_per_s is not None and self.prefill.seconds is not None:
            lines.append(
                f"{self.tokens_per_s:,.3g} tokens/s; {prompt} {self.prefill.seconds * 1e3:,.3g} "
                f"ms: {ESTIMATE_NOTE}"
            )
        if self.most_tokens_per_s is not None and self.least_ttft_s is not None:
            lines.append(
                f"at most {self.most_tokens_per_s:,.3g} tokens/s; {prompt} at least "
                f"{self.least_ttft_s * 1e3:,.3g} ms: bounds, not measurements"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class StaticProgram:
    """A program of the static pipeline.

    Attributes:
        name: name of the model, with the sizes.
        tokens: tokens of one run.
        model: the model with a cache of the smallest size.
        options: options of the NPU's compiler.
    """

    name: str
    tokens: int
    model: ov.Model
    options: Mapping[str, str]


def static_programs(
    name_or_path: str | Path, options: LoadOptions, *, target: str = "lunar-lake"
) -> Iterator[StaticProgram]:
    """Yields a model's program for one token, and the one for the longest chunk of a prompt.

    Arguments and errors are those of check_static_programs.
    """
    options = dataclasses.replace(options, pipeline="static", verify="off", is_for_npus=True)
    entry = _entry(name_or_path, options)
    layout = entry.static_layout
    assert layout is not None, "static entries have a layout"
    sizes, form = entry.static_sizes, form_of(target)
    progress = Progress(options.on_progress, stages=TARGET_STAGES)
    steps = (("decode", sizes.chunks[0]), ("prefill", sizes.chunks[-1]))
    # The caller's work on a program belongs to the stage.
    with progress.stage("blobs"), tempfile.TemporaryDirectory(prefix="npu-check-") as place:
        for number, (step, tokens) in enumerate(steps):
            is_first = tokens > 1 and layout.starts_empty
            one = StepSizes(tokens, 0 if is_first else sizes.capacities[0], 1)
            path = write_variant(
                entry.model_path,
                Path(place) / step,
                layout.port_shapes(one),
                rewriting(layout, one, form),
            )
            name = f"{entry.name}, {step} of {tokens}"
            if one.capacity:
                name += f" in {one.capacity}"
            progress.advance(number / len(steps), name)
            # OpenVINO maps the file, which stays readable after its folder is deleted.
            yield StaticProgram(
                name, tokens, openvino_core().read_model(path), form.options(tokens)
            )


def _entry(name_or_path: str | Path, options: LoadOptions) -> Entry:
    folder = Path(name_or_path).expanduser()
    if not is_exported(folder):
        return prepare(name_or_path, options).entry
    entry = open_exported(folder)
    options.check_exported(entry.precision, entry.pipeline)
    return entry
