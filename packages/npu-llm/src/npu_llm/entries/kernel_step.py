"""Saves a model's captured step as a kernel program with its packed weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from npu_compiler.errors import LoweringError
from npu_compiler.kernel_programs import Lowered, lower_to_kernels
from npu_llm.capture.compression import Compression
from npu_llm.capture.step import CapturedStep
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.entries.entry import KERNEL_PROGRAM, REFERENCE, STEP_WEIGHTS
from npu_llm.entries.kernel_weights import pack_weights
from npu_llm.entries.packed_parameters import PackedParameters
from npu_llm.precision import Precision, kernels_cache
from npu_llm.progress import Advance, Progress
from npu_llm.verification.eager_weights import Rounding
from npu_llm.verification.torch_reference import compute_reference
from npu_ops.kernel_programs.program import LayerShape
from npu_ops.kernel_programs.weights import write_weights

__all__ = ["lower_step", "refusal_of", "save_kernel_step", "why_not"]

_Weight = TypeVar("_Weight")
# Positions of a model that sets no limit.
_POSITIONS = 1 << 16


def save_kernel_step(
    model: Any,
    captured: CapturedStep,
    folder: Path,
    *,
    precision: Precision,
    progress: Progress,
    weights: StreamedWeights,
    compression: Compression,
    context: int | None,
    tokenizer: Any | None = None,
) -> dict[str, Any]:
    """Saves a model's step as a kernel program.

    Args:
        model: a decoder-only transformers model in float32, on cpu.
        captured: its step, which writes nothing in place; changed if weights are rounded by a text.
        folder: where to write the program, its weights, and what torch computes for a few tokens.
        precision: how to store the weights.
        progress: where to report.
        weights: the values of the model's parameters.
        compression: how weights of few bits are made.
        context: how many tokens the model was made for; None if nothing sets a limit.
        tokenizer: the model's, for weights that are rounded by a text.

    Returns:
        What is known about the step: how many layers it has.

    Raises:
        npu_compiler.errors.LoweringError: [not-row-wise] if it is no kernel program.
        OptionError: [quantize-text], see npu_llm.capture.compression.
    """
    with progress.stage("lower"):
        lowered = lower_step(captured, context)
    (folder / KERNEL_PROGRAM).write_text(json.dumps(lowered.program.as_dict()))
    with progress.stage("pack"):
        rounded = {}
        if precision.weights == "int4" and compression.text is not None:
            from npu_llm.entries.lower_step import integers_by_text  # needs OpenVINO

            rounded = integers_by_text(
                model, captured, weights=weights, compression=compression, tokenizer=tokenizer
            )
        packed = pack_weights(
            lowered, weights, precision=precision, compression=compression, rounded=rounded
        )
        count = len(lowered.program.weights)
        write_weights(folder / STEP_WEIGHTS, _counted(packed, count, progress.advance))
    with progress.stage("reference"):
        cached = getattr(torch, kernels_cache(precision))
        compute_reference(
            model,
            weights,
            compressed=PackedParameters(lowered, folder / STEP_WEIGHTS),
            rounding=Rounding(cached, precision.activation_group),
            context=context,
            on_progress=progress.advance,
        ).write(folder / REFERENCE)
    return {"layers": len(captured.layers), "limits": list(captured.limits)}


def refusal_of(captured: CapturedStep, context: int | None) -> str | None:
    """Returns why a captured step is not a kernel program; None if it is.

    Args:
        captured: the step, which writes nothing in place.
        context: how many tokens the model was made for; None if nothing sets a limit.
    """
    try:
        lower_step(captured, context)
    except LoweringError as refusal:
        return why_not(refusal)
    return None


def why_not(refusal: LoweringError) -> str:
    """Returns a refusal as part of a sentence: the call, its line of Python, and the reason."""
    call = str(refusal).partition(": must ")[0]
    return f"{call} {refusal.reason}" if refusal.reason else str(refusal).rstrip(".")


def lower_step(captured: CapturedStep, context: int | None) -> Lowered:
    """Returns the program of a step; raises as save_kernel_step does."""
    if captured.states:
        reason = "its model keeps states beside keys and values, which no kernel carries on"
        raise LoweringError(
            f"the step: must be row-wise; got one that is not: {reason}. Run it in the dynamic "
            "pipeline.",
            code="not-row-wise",
            reason=reason,
        )
    shapes = [
        LayerShape(layer.key_heads, layer.key_dim, layer.value_dim) for layer in captured.layers
    ]
    return lower_to_kernels(
        captured.graph_module,
        inputs=captured.inputs,
        layers=shapes,
        vocabulary=captured.vocabulary,
        positions=context or _POSITIONS,
    )


def _counted(
    items: Iterable[tuple[str, _Weight]], total: int, advance: Advance
) -> Iterator[tuple[str, _Weight]]:
    """Yields the items, and reports which of them was made."""
    for number, (name, weight) in enumerate(items, 1):
        advance(number / total, f"weight {number:,} of {total:,}, {name}")
        yield name, weight
