"""Builds the entry of a multi-part model: programs, config, processor and reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov
from safetensors.torch import save_file

from npu_compiler.errors import LoweringError
from npu_compiler.lowering import lower
from npu_compiler.programs.stateful import StateVariable, make_stateful
from npu_llm.capture.compression import Compression, compress
from npu_llm.capture.position_remapping import remap_positions
from npu_llm.capture.static_step import make_static
from npu_llm.capture.step import CapturedStep
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.processors import copy_processors
from npu_llm.checkpoint.saved import save_config
from npu_llm.checkpoint.source import ModelSource
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.choices import PipelineName
from npu_llm.errors import CaptureError
from npu_llm.models.entry import REFERENCE
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.lower_step import fits_half, is_windowed, share_masks
from npu_llm.multi_part.reference import compute
from npu_llm.multi_part.running import OUTER
from npu_llm.multi_part.tracing import Part, TracedModel, TracedPart
from npu_llm.precision import PRECISIONS, Precision, cache_dtype, rounding_of
from npu_llm.progress import Progress
from npu_llm.verification.reference import CompressedWeights, Integers, Rounding

__all__ = ["fill_entry", "lower_static_step"]

_INTEGERS = ("int8", "int4")


def fill_entry(
    folder: Path,
    source: ModelSource,
    options: LoadOptions,
    progress: Progress,
    *,
    auto: Any,
    pipeline: PipelineName,
    trace: Callable[[Any, ModelSource], TracedModel],
) -> None:
    """Writes an entry without its compiled form, which the first load adds.

    Args:
        folder: an empty folder.
        source: the model's files.
        options: load options.
        progress: receives the stages.
        auto: transformers' auto class for the task.
        pipeline: "dynamic" or "static".
        trace: traces the transformers model, in float32 on cpu.

    Raises:
        ModelError, CaptureError: if the model cannot be read or traced.
    """
    precision, is_static = options.precision, pipeline == "static"
    with progress.stage("weights"):
        model, weights = load_model(
            source,
            auto=auto,
            trust_remote_code=options.trust_remote_code,
            ignore_unexpected=options.ignore_unexpected,
        )
    with progress.stage("capture"):
        traced = trace(model, source)
    save_config(model.config, folder)
    model.generation_config.save_pretrained(folder)
    copy_processors(source.folder, folder)
    members: list[Integers] = []
    steps: dict[str, Any] = {}
    for part in traced.parts:
        integers, facts = _save_part(
            part,
            folder / f"{part.traced.name}.xml",
            model=model,
            precision=precision,
            weights=weights,
            progress=progress,
            is_static=is_static,
        )
        members += [] if integers is None else [integers]
        steps |= {} if facts is None else {part.traced.name: facts}
    if traced.outer is not None:
        outer = {name: weights.read(one).float().clone() for name, one in traced.outer.items()}
        save_file(outer, folder / OUTER)
    with progress.stage("reference"):
        reference = compute(
            traced.run,
            traced.inputs,
            traced.ids,
            weights=weights,
            compressed=_AnyOf(tuple(members)) if members else None,
            rounding=Rounding(rounding_of(precision), precision.activation_group),
        )
        reference.write(folder / REFERENCE)
    about = {
        "name": source.name,
        "source": str(source.path),
        "precision": precision.name,
        "task": auto.__name__,
        "architecture": type(model).__name__,
        "pipeline": pipeline,
        "static_parts": None if traced.static is None else {**traced.static, "steps": steps},
        "outputs": {
            part.traced.name: [name for name in part.traced.outputs if name not in part.cache]
            for part in traced.parts
        },
        **traced.about,
    }
    (folder / "about.json").write_text(json.dumps(about))


def lower_static_step(
    captured: CapturedStep,
    model: Any,
    *,
    part: str,
    name: str,
    precision: Precision,
    is_masked: bool = False,
    **values: Any,
) -> tuple[ov.Model, dict[str, Any]]:
    """Lowers a step of a part with a cache of fixed size as an input.

    Args:
        captured: the step; its graph is modified.
        model: the transformers model.
        part: its name in messages, such as "decoder".
        name: name of the program.
        precision: storage type of keys and values.
        is_masked: whether its mask contains all pairs of tokens, so that the step need not be made
            independent of its past's positions.
        values: values that npu_llm.capture.position_remapping.remap_positions needs to run it.

    Returns:
        The program, with inputs named like the step's; and its layout and relocation, for JSON.

    Raises:
        CaptureError: [static-positions] if its code numbers positions in an unknown way,
            [static-cache] as in make_static.
    """
    relocation: Any = "mask"
    if not is_masked:
        is_local = is_windowed(model.config)
        captured, relocation = remap_positions(captured, windowed=is_local, **values)
    if relocation is None:
        raise CaptureError(
            f"`{type(model).__name__}` must have a {part} that counts tokens in a supported way, "
            "for the static pipeline, got another way. Run it in the dynamic pipeline.",
            code="static-positions",
        )
    share_masks(captured.graph_module)
    static = make_static(captured, cache_dtype(precision))
    lowered = lower(captured.graph_module, name=name).model
    names = [*captured.inputs, *captured.cache_names]
    for parameter, port in zip(lowered.get_parameters(), names, strict=True):
        parameter.set_friendly_name(port)
        parameter.get_output_tensor(0).set_names({port})
    return lowered, {"layout": static.as_dict(), "relocation": relocation}


@dataclass(frozen=True)
class _AnyOf:
    """The integers of several programs of one model."""

    members: tuple[Integers, ...]

    def read(self, tensor: Any) -> Any:
        """See Integers."""
        return next(
            (found for one in self.members if (found := one.read(tensor)) is not None), None
        )

    def rows(self, tensor: Any, indices: Any) -> Any:
        """See Integers."""
        found = (one.rows(tensor, indices) for one in self.members)
        return next((rows for rows in found if rows is not None), None)


def _save_part(
    part: Part,
    path: Path,
    *,
    model: Any,
    precision: Precision,
    weights: StreamedWeights,
    progress: Progress,
    is_static: bool,
) -> tuple[Integers | None, dict[str, Any] | None]:
    """Writes a part as IR; returns its integer weights, and facts of a static step."""
    traced, facts = part.traced, None
    if not part.is_compressed and precision.weights in _INTEGERS:
        # Images need the accuracy of their encoder more than a small one.
        precision = PRECISIONS["bfloat16"]
    try:
        with progress.stage("lower"):
            if is_static and part.lower_static is not None:
                lowered, facts = part.lower_static(precision, weights)
            else:
                lowered = _lower(traced)
    except LoweringError as failure:
        raise CaptureError(
            f"`{type(model).__name__}` must have a {traced.name} that is one program, got: "
            f"{str(failure).rstrip('.')}. Such models are not supported yet.",
            code="capture-failed",
        ) from failure
    integers = CompressedWeights(lowered) if precision.weights in _INTEGERS else None
    if part.cache and not is_static:
        variables = [
            StateVariable(name, traced.inputs.index(name), traced.outputs.index(name))
            for name in part.cache
        ]
        lowered = make_stateful(lowered, variables)
    if integers is not None:
        with progress.stage("compress"):
            compress(lowered, precision, Compression(), weights)
            integers.find(lowered)
    with progress.stage("save"):
        half = not traced.is_exact and fits_half(model, weights, precision)
        weights.write(lowered, path, half=half)
    return integers, facts


def _lower(part: TracedPart) -> Any:
    """Returns a part as a named openvino.Model; caches are inputs and results."""
    share_masks(part.graph_module)
    lowered = lower(part.graph_module, name=part.name).model
    for parameter, name in zip(lowered.get_parameters(), part.inputs, strict=True):
        parameter.set_friendly_name(name)
        parameter.get_output_tensor(0).set_names({name})
    for result, name in zip(lowered.get_results(), part.outputs, strict=True):
        result.get_output_tensor(0).set_names({f"{name}.next" if name in part.inputs else name})
    return lowered
