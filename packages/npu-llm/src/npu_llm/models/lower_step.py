"""Lowers a model's traced step to a model on disk in the given precision.

In the dynamic pipeline the cache becomes the model's state. In the static one it remains an input,
with sizes that each program fixes (npu_llm.capture.static_step).
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import fx

from npu_compiler.graph.kept_origins import keep_origins
from npu_compiler.lowering import lower, node_origins
from npu_compiler.lowering.context import MASKED
from npu_compiler.programs.stateful import StateVariable, make_stateful
from npu_compiler.quantize import QuantizedWeight
from npu_llm.capture.chunked_step import read_in_chunks
from npu_llm.capture.compression import Compression, compress, compress_by_text
from npu_llm.capture.graph_rewrites import Emitter
from npu_llm.capture.position_remapping import remap_positions
from npu_llm.capture.static_step import make_static
from npu_llm.capture.step import CapturedStep
from npu_llm.capture.weight_inputs import move_weights
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.choices import PipelineName
from npu_llm.errors import CaptureError
from npu_llm.kv_cache.cache import Relocation
from npu_llm.kv_cache.static_layout import StaticLayout
from npu_llm.models.entry import ORIGINS, REFERENCE, STEP_WEIGHTS
from npu_llm.models.specialize import read_by
from npu_llm.precision import Precision, cache_dtype, rounding_of
from npu_llm.progress import Progress
from npu_llm.verification.reference import CompressedWeights, Rounding, compute_reference

__all__ = ["fits_half", "integers_by_text", "is_windowed", "save_step", "share_masks"]

_aten = torch.ops.aten
_LARGEST_HALF = torch.finfo(torch.float16).max


def save_step(
    model: Any,
    captured: CapturedStep,
    path: Path,
    *,
    precision: Precision,
    pipeline: PipelineName,
    progress: Progress,
    weights: StreamedWeights,
    compression: Compression,
    context: int | None,
    tokenizer: Any | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Saves a model's step as IR: `path` and the weights next to it.

    Args:
        model: a decoder-only transformers model in float32, on cpu.
        captured: its step without in-place writes; modified.
        path: the .xml file to write; files next to it contain the calls' origins and torch's
            results for a few tokens.
        precision: storage type of the weights.
        pipeline: the model's pipeline.
        progress: receives the stages.
        weights: the values of the model's parameters.
        compression: quantization options.
        context: the model's context in tokens; None if it sets no limit.
        tokenizer: the model's tokenizer, for calibration by a text.
        device: OpenVINO's name of the target device; by default the one in use.

    Returns:
        Facts about the step: layers, the conditions of the trace, how its slots are identified (see
        npu_llm.kv_cache.cache.Relocation), and for the static pipeline the layout of its cache.

    Raises:
        CaptureError: if the model cannot be traced.
        OptionError: [quantize-text], see npu_llm.capture.compression.
        npu_compiler.errors.LoweringError: if one of its calls has no converter.
    """
    with progress.stage("lower"):
        # Only after functionalization, because it replaces ranges by inputs.
        captured, relocation = remap_positions(
            captured, windowed=is_windowed(model.config), weights=weights
        )
        about = {
            "layers": len(captured.layers),
            "limits": list(captured.limits),
            "relocation": relocation,
            "adapted": {module: list(sizes) for module, sizes in captured.adapted.items()},
            "states": {state.name: list(state.sizes) for state in captured.states},
        }
        share_masks(captured.graph_module)
        layout: StaticLayout | None = None
        if pipeline == "static":
            if captured.states:
                windowed = is_windowed(model.config)
                captured = read_in_chunks(captured, windowed=windowed, weights=weights)
            _check_relocation(model, captured, relocation)
            layout = make_static(captured, _static_dtype(precision, compression, device))
        # Attention that propagates NaN takes three more calls. Here attention never reads NaN,
        # because masks and empty slots are finite.
        nan = "propagate" if layout is None else "fast"
        lowered = lower(captured.graph_module, name=type(model).__name__, nan=nan).model
        _name_ports(lowered, captured)
    integers = CompressedWeights(lowered) if precision.weights in ("int8", "int4") else None
    if precision.weights == "int4" and compression.text is not None:
        with progress.stage("compress"):
            weights.fill()
            lowered = compress_by_text(lowered, captured, compression, tokenizer)
    if pipeline == "dynamic" and captured.layers:
        lowered = make_stateful(lowered, _variables(captured))
    if precision.weights in ("int8", "int4"):
        with progress.stage("compress"):
            compress(lowered, precision, compression, weights)
    with progress.stage("reference"):
        if integers is not None:
            integers.find(lowered)
        rounding = Rounding(rounding_of(precision), precision.activation_group)
        compute_reference(
            model,
            weights,
            compressed=integers,
            rounding=rounding,
            context=context,
            has_states=bool(captured.states),
            on_progress=progress.advance,
        ).write(path.with_name(REFERENCE))
    moved = None
    if layout is not None:
        if integers is not None:
            moved = move_weights(lowered, dtype=layout.torch_dtype, read=weights.read)
            layout = replace(
                layout,
                tables=moved.tables,
                is_specialized=True,
                starts_empty=not layout.states and _joins_past(lowered, layout),
            )
        about["static"] = layout.as_dict()
    origins = node_origins(captured.graph_module.graph)
    path.with_name(ORIGINS).write_text(json.dumps(origins))
    keep_origins(lowered, origins)
    with progress.stage("save"):
        weights.write(lowered, path, half=fits_half(model, weights, precision))
        if moved is not None:
            save_file(moved.tensors, path.with_name(STEP_WEIGHTS))
    return about


def integers_by_text(
    model: Any,
    captured: CapturedStep,
    *,
    weights: StreamedWeights,
    compression: Compression,
    tokenizer: Any | None,
) -> dict[int, QuantizedWeight]:
    """Rounds a model's weights to int4 with a calibration text, for the dynamic pipeline.

    Args:
        model: see save_step.
        captured: its step; modified.
        weights: the values of the model's parameters, all loaded into memory.
        compression: options with a calibration text.
        tokenizer: the model's tokenizer.

    Returns:
        The integers (outputs, inputs) by parameter address.

    Raises:
        CaptureError, OptionError, npu_compiler.errors.LoweringError: the errors of save_step.
    """
    captured, _ = remap_positions(captured, windowed=is_windowed(model.config), weights=weights)
    share_masks(captured.graph_module)
    lowered = lower(captured.graph_module, name=type(model).__name__).model
    _name_ports(lowered, captured)
    integers = CompressedWeights(lowered)
    weights.fill()
    integers.find(compress_by_text(lowered, captured, compression, tokenizer))
    return integers.quantized()


def _static_dtype(
    precision: Precision, compression: Compression, device: str | None
) -> torch.dtype:
    """Returns the storage type of the static pipeline's caches."""
    dtype = cache_dtype(precision, device=device)
    if compression.text is not None and dtype is torch.bfloat16:
        return torch.float32  # calibration runs the step on numpy arrays
    return dtype


def _check_relocation(model: Any, captured: CapturedStep, relocation: Relocation) -> None:
    if captured.layers and relocation is None:
        raise CaptureError(
            f"`{type(model).__name__}` must take positions as an input in the static pipeline, "
            "got a model that counts tokens itself. Run it in the dynamic pipeline.",
            code="static-positions",
        )


def is_windowed(config: Any) -> bool:
    """Whether a layer may see only some of the earlier tokens."""
    text_config = config.get_text_config()
    names = ("sliding_window", "attention_chunk_size", "local_attention")
    return any(getattr(text_config, name, None) for name in names)


def fits_half(model: Any, weights: StreamedWeights, precision: Precision) -> bool:
    """Whether the weights fit into float16, which has three more mantissa bits than bfloat16."""
    if precision.weights not in ("bfloat16", "float16"):
        return False
    values = itertools.chain(weights.values(), model.parameters())
    return all(float(value.detach().abs().max()) <= _LARGEST_HALF for value in values)


def _joins_past(model: Any, layout: StaticLayout) -> bool:
    """Whether the past is read only by its size and by calls that append new tokens."""
    caches = {port for group in layout.groups for port in group.ports}
    found = [one for one in model.get_parameters() if one.get_friendly_name() in caches]
    kinds = {node.get_type_name() for one in found for node in read_by(one)}
    return bool(found) and kinds <= {"Concat", "ShapeOf"}


def _variables(captured: CapturedStep) -> list[StateVariable]:
    first = len(captured.inputs)
    return [
        StateVariable(name, first + index, 1 + index)
        for index, name in enumerate(captured.cache_names)
    ]


def _name_ports(model: Any, captured: CapturedStep) -> None:
    states = [state.name for state in captured.states]
    names = [*captured.inputs, *captured.cache_names, *states]
    for parameter, name in zip(model.get_parameters(), names, strict=True):
        parameter.set_friendly_name(name)
        parameter.get_output_tensor(0).set_names({name})
    results = model.get_results()
    results[0].get_output_tensor(0).set_names({"logits"})
    for result, name in zip(results[len(results) - len(states) :], states, strict=True):
        result.get_output_tensor(0).set_names({f"{name}.next"})


def share_masks(graph_module: fx.GraphModule) -> None:
    """Converts each boolean mask to an additive one, shared by all layers.

    Attention returns 0 for a fully masked query, for which lowering would add calls to each layer.
    Here such queries are padding with unused results.
    """
    graph = graph_module.graph
    additive: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is not _aten.scaled_dot_product_attention.default:
            continue
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if not isinstance(mask, fx.Node) or mask.meta["val"].dtype is not torch.bool:
            continue
        if mask not in additive:
            with graph.inserting_before(node):
                emit = Emitter(mask)
                hidden = emit(_aten.to.dtype, emit(_aten.logical_not.default, mask), torch.float32)
                additive[mask] = emit(_aten.mul.Tensor, hidden, MASKED)
        node.replace_input_with(mask, additive[mask])
    graph_module.recompile()
