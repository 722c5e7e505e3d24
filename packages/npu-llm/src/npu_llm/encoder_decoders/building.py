"""Writes an entry for a model with encoder and decoder: its programs, config and processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers

from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import ModelSource
from npu_llm.choices import PipelineName
from npu_llm.encoder_decoders.parts import DECODERS, trace_parts
from npu_llm.encoder_decoders.reference import compute_reference
from npu_llm.encoder_decoders.static_lowering import describe_static, lower_static
from npu_llm.errors import ModelError
from npu_llm.kv_cache.static_layout import LONGEST
from npu_llm.models.entry import REFERENCE
from npu_llm.models.load_options import LoadOptions
from npu_llm.part_programs.saving import AnyOf, lower_part, save_beside, save_part
from npu_llm.precision import rounding_of
from npu_llm.progress import Progress
from npu_llm.verification.reference import Rounding

__all__ = ["fill_entry"]


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
        npu_compiler.errors.LoweringError: if one of its calls has no converter.
    """
    with progress.stage("weights"):
        model, weights = load_model(
            source, auto=auto, trust_remote_code=options.trust_remote_code,
            on_progress=progress.advance,
        )  # fmt: skip
    _check_class(model, source)
    save_beside(model, source, folder)
    aligned = getattr(model.generation_config, "alignment_heads", None) is not None
    with progress.stage("capture"):
        parts, layout = trace_parts(model, attending=aligned)
    static = describe_static(model, parts, layout) if pipeline == "static" else None
    outputs: dict[str, list[str]] = {}
    integers = []
    for part in parts:
        if static is not None and part.name in DECODERS:
            with progress.stage("lower"):
                lowered, static["decoders"][part.name] = lower_static(
                    model, part, layout, precision=options.precision, weights=weights
                )
        else:
            with progress.stage("lower"):
                lowered = lower_part(part)
        holds_state = static is None and part.name in DECODERS
        made = save_part(
            part,
            lowered,
            folder / f"{part.name}.xml",
            states=layout.own_names if holds_state else (),
            model=model,
            precision=options.precision,
            weights=weights,
            progress=progress,
        )
        integers += [] if made is None else [made]
        outputs[part.name] = [name for name in part.outputs if name not in layout.own_names]
    with progress.stage("reference"):
        precision = options.precision
        rounding = Rounding(rounding_of(precision), precision.activation_group)
        compressed = AnyOf(tuple(integers)) if integers else None
        reference = compute_reference(model, weights, compressed=compressed, rounding=rounding)
        reference.write(folder / REFERENCE)
    most = None if static is None else LONGEST
    about = {
        "name": source.name,
        "source": str(source.path),
        "precision": options.precision.name,
        "architecture": type(model).__name__,
        "pipeline": pipeline,
        "static_parts": static,
        "encoder_inputs": list(parts[0].inputs),
        "takes_mask": any("attention_mask" in part.inputs for part in parts[2:]),
        "outputs": outputs,
        "positions": _positions(model, "max_target_positions") or most,
        "source_positions": _positions(model, "max_source_positions") or most,
    }
    (folder / "about.json").write_text(json.dumps(about))


def _check_class(model: Any, source: ModelSource) -> None:
    name = type(model).__name__
    if hasattr(transformers, name) and model.config.is_encoder_decoder:
        return
    raise ModelError(
        f"{source.path}: must be a model with an encoder and a decoder that transformers has; got "
        f"{name}. Load it with another class, such as NPUModelForCausalLM.",
        code="model-task",
    )


def _positions(model: Any, name: str) -> int | None:
    """Returns how many positions the decoder, or the encoder, has in a table; None for none."""
    half = model.get_decoder() if name == "max_target_positions" else model.get_encoder()
    if not hasattr(half, "embed_positions"):
        return None
    found = getattr(model.config, name, None)
    found = getattr(model.config, "max_position_embeddings", None) if found is None else found
    return None if found is None else int(found)
