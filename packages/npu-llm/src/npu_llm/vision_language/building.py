"""Writes an entry for a model of images and text: its programs, configs and processor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from npu_compiler.errors import LoweringError
from npu_llm.capture.model_cache import LayerCache
from npu_llm.checkpoint.facts import context_length
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import ModelSource
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.choices import PipelineName
from npu_llm.errors import CaptureError, ModelError
from npu_llm.kv_cache.static_layout import LONGEST
from npu_llm.models.entry import REFERENCE
from npu_llm.models.load_options import LoadOptions
from npu_llm.part_programs.saving import AnyOf, lower_part, save_beside, save_part
from npu_llm.part_programs.tracing import TracedPart
from npu_llm.precision import PRECISIONS, Precision, rounding_of
from npu_llm.progress import Progress
from npu_llm.verification.reference import Integers, Rounding
from npu_llm.vision_language.capturing import TracedModel, trace_model
from npu_llm.vision_language.examples import example_images
from npu_llm.vision_language.glue import GLUE
from npu_llm.vision_language.observing import SeenPart, observe_parts
from npu_llm.vision_language.places import EMBED, HEAD, LANGUAGE, glue_tensors
from npu_llm.vision_language.reference import compute_reference
from npu_llm.vision_language.static.lowering import describe_part, lower_language

__all__ = ["fill_entry"]

_TEXT_PARTS = (EMBED, LANGUAGE, HEAD)


def fill_entry(
    folder: Path,
    source: ModelSource,
    options: LoadOptions,
    progress: Progress,
    *,
    auto: Any,
    pipeline: PipelineName,
) -> None:
    """Writes an entry without its compiled form, which the first load adds.

    Args:
        folder: an empty folder.
        source: the model's files.
        options: how the model is to run.
        progress: where to report.
        auto: transformers' class for models of the task.
        pipeline: "dynamic" or "static".

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
    saving = _Saving(folder, model, options.precision, weights, progress)
    static = _describe(model, traced, seen) if pipeline == "static" else None
    integers = saving.save(traced, static)
    glue = {name: weights.read(one).float().clone() for name, one in glue_tensors(model)}
    save_file(glue, folder / GLUE)
    with progress.stage("reference"):
        chosen = options.precision
        reference = compute_reference(
            model,
            weights,
            compressed=AnyOf(integers) if integers else None,
            rounding=Rounding(rounding_of(chosen), chosen.activation_group),
        )
        reference.write(folder / REFERENCE)
    context = context_length(model.config.get_text_config().to_dict())
    if static is not None:
        context = context or LONGEST
        prompt = reference.inputs["input_ids"].shape[1]
        static |= {"prompt": prompt, "checked": prompt + reference.ids.shape[1]}
    about = {
        "name": source.name,
        "source": str(source.path),
        "precision": options.precision.name,
        "architecture": type(model).__name__,
        "pipeline": pipeline,
        "context_length": context,
        "static_parts": static,
        "pixels": list(example_images(model, rows=1, fill=torch.empty)["pixel_values"].shape),
        "outputs": {part.name: list(part.outputs) for part in traced.parts},
        "parts": {name: part.as_dict() for name, part in seen.items()},
    }
    (folder / "about.json").write_text(json.dumps(about))


@dataclass(frozen=True)
class _Saving:
    """Where and how a model's parts are written.

    Attributes:
        folder: the entry's.
        model: of transformers.
        precision: how to store its weights.
        weights: the values of its parameters.
        progress: where to report.
    """

    folder: Path
    model: Any
    precision: Precision
    weights: StreamedWeights
    progress: Progress

    def save(self, traced: TracedModel, static: dict[str, Any] | None) -> tuple[Integers, ...]:
        """Writes the parts; returns the integers that they hold.

        Args:
            traced: the parts.
            static: for programs of fixed sizes, gets what is known about the language model; else
                None.
        """
        integers = []
        for part in traced.parts:
            try:
                made = self._save(part, traced, static)
            except LoweringError as failure:
                raise CaptureError(
                    f"{type(self.model).__name__}: its {part.name} must be one program; got: "
                    f"{str(failure).rstrip('.')}. Such models are not supported yet.",
                    code="capture-failed",
                ) from failure
            if made is not None:
                integers.append(made)
        return tuple(integers)

    def _save(
        self, part: TracedPart, traced: TracedModel, static: dict[str, Any] | None
    ) -> Integers | None:
        compresses = part.name in _TEXT_PARTS or self.precision.weights not in ("int8", "int4")
        is_language = part.name == LANGUAGE
        with self.progress.stage("lower"):
            if static is not None and is_language:
                lowered, static[LANGUAGE] = lower_language(
                    self.model,
                    part,
                    precision=self.precision,
                    weights=self.weights,
                    layers=_layers(traced),
                )
            else:
                lowered = lower_part(part)
        return save_part(
            part,
            lowered,
            self.folder / f"{part.name}.xml",
            states=traced.cache_names if is_language and static is None else (),
            model=self.model,
            # Images need digits of their encoder more than it needs to be small.
            precision=self.precision if compresses else PRECISIONS["bfloat16"],
            weights=self.weights,
            progress=self.progress,
        )


def _describe(model: Any, traced: TracedModel, seen: Mapping[str, SeenPart]) -> dict[str, Any]:
    """Returns what programs of fixed sizes need to know of the parts without a cache."""
    described = {
        part.name: describe_part(model, part, seen[part.name].examples)
        for part in traced.parts
        if part.name != LANGUAGE
    }
    return {"parts": described}


def _layers(traced: TracedModel) -> tuple[LayerCache, ...]:
    shapes = traced.cache_shapes
    pairs = zip(shapes[::2], shapes[1::2], strict=True)
    return tuple(LayerCache(*key, *value) for key, value in pairs)


def _check_class(model: Any, source: ModelSource) -> None:
    name = type(model).__name__
    if hasattr(transformers, name) and hasattr(model, "get_image_features"):
        return
    raise ModelError(
        f"{source.path}: must be a model of images and text that transformers has; got {name}. "
        "Load it with another class, such as NPUModelForCausalLM.",
        code="model-task",
    )
