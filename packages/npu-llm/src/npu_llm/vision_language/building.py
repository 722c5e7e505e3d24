"""Writes an entry for a model of images and text: its programs, configs and processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from npu_compiler.errors import LoweringError
from npu_llm.checkpoint.facts import context_length
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import ModelSource
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.entries.entry import REFERENCE
from npu_llm.entries.load_options import LoadOptions
from npu_llm.errors import CaptureError, ModelError
from npu_llm.part_programs.saving import AnyOf, lower_part, save_beside, save_part
from npu_llm.precision import PRECISIONS, Precision, rounding_of
from npu_llm.progress import Progress
from npu_llm.verification.eager_weights import Integers, Rounding
from npu_llm.vision_language.capturing import TracedModel, trace_model
from npu_llm.vision_language.examples import example_images
from npu_llm.vision_language.glue import GLUE
from npu_llm.vision_language.observing import observe_parts
from npu_llm.vision_language.places import EMBED, HEAD, LANGUAGE, glue_tensors
from npu_llm.vision_language.reference import compute_reference

__all__ = ["fill_entry"]

_TEXT_PARTS = (EMBED, LANGUAGE, HEAD)


def fill_entry(
    folder: Path, source: ModelSource, options: LoadOptions, progress: Progress, *, auto: Any
) -> None:
    """Writes an entry without its compiled form, which the first load adds.

    Args:
        folder: an empty folder.
        source: the model's files.
        options: how the model is to run.
        progress: where to report.
        auto: transformers' class for models of the task.

    Raises:
        ModelError, CaptureError: if the model cannot be read or captured.
    """
    with progress.stage("weights"):
        model, weights = load_model(
            source, auto=auto, trust_remote_code=options.trust_remote_code,
            on_progress=progress.advance,
        )  # fmt: skip
    _check_class(model, source)
    save_beside(model, source, folder)
    with progress.stage("capture"):
        seen = observe_parts(model)
        traced = trace_model(model, seen)
    integers = _save_parts(traced, folder, model, options.precision, weights, progress)
    glue = {name: weights.read(one).float().clone() for name, one in glue_tensors(model)}
    save_file(glue, folder / GLUE)
    with progress.stage("reference"):
        chosen = options.precision
        compute_reference(
            model,
            weights,
            compressed=AnyOf(integers) if integers else None,
            rounding=Rounding(rounding_of(chosen), chosen.activation_group),
        ).write(folder / REFERENCE)
    about = {
        "name": source.name,
        "source": str(source.path),
        "precision": options.precision.name,
        "architecture": type(model).__name__,
        "pipeline": "dynamic",
        "context_length": context_length(model.config.get_text_config().to_dict()),
        "pixels": list(example_images(model, rows=1, fill=torch.empty)["pixel_values"].shape),
        "outputs": {part.name: list(part.outputs) for part in traced.parts},
        "parts": {name: part.as_dict() for name, part in seen.items()},
    }
    (folder / "about.json").write_text(json.dumps(about))


def _save_parts(
    traced: TracedModel,
    folder: Path,
    model: Any,
    precision: Precision,
    weights: StreamedWeights,
    progress: Progress,
) -> tuple[Integers, ...]:
    """Writes the parts; returns the integers that they hold."""
    integers = []
    for part in traced.parts:
        compresses = part.name in _TEXT_PARTS or precision.weights not in ("int8", "int4")
        try:
            with progress.stage("lower"):
                lowered = lower_part(part)
            made = save_part(
                part,
                lowered,
                folder / f"{part.name}.xml",
                states=traced.cache_names if part.name == LANGUAGE else (),
                model=model,
                # Images need digits of their encoder more than it needs to be small.
                precision=precision if compresses else PRECISIONS["bfloat16"],
                weights=weights,
                progress=progress,
            )
        except LoweringError as failure:
            raise CaptureError(
                f"{type(model).__name__}: its {part.name} must be one program; got: "
                f"{str(failure).rstrip('.')}. Such models are not supported yet.",
                code="capture-failed",
            ) from failure
        if made is not None:
            integers.append(made)
    return tuple(integers)


def _check_class(model: Any, source: ModelSource) -> None:
    name = type(model).__name__
    if hasattr(transformers, name) and hasattr(model, "get_image_features"):
        return
    raise ModelError(
        f"{source.path}: must be a model of images and text that transformers has; got {name}. "
        "Load it with another class, such as NPUModelForCausalLM.",
        code="model-task",
    )
