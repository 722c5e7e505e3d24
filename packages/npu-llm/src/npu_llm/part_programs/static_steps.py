"""Steps of parts for programs of fixed sizes: independent of where their past lies."""

from __future__ import annotations

from typing import Any

import openvino as ov

from npu_compiler.lowering import lower
from npu_llm.capture.position_remapping import remap_positions
from npu_llm.capture.static_step import make_static
from npu_llm.capture.step import CapturedStep
from npu_llm.errors import CaptureError
from npu_llm.kv_cache.cache import Relocation
from npu_llm.kv_cache.static_layout import StaticLayout
from npu_llm.models.lower_step import is_windowed, share_masks
from npu_llm.precision import Precision, cache_dtype

__all__ = ["lower_static_step", "relocate_part"]


def relocate_part(
    captured: CapturedStep, model: Any, *, part: str, **values: Any
) -> tuple[CapturedStep, Relocation]:
    """Makes a step of a part independent of where its past lies.

    Args:
        captured: the step.
        model: of transformers.
        part: what to call it in an error: "decoder".
        values: what npu_llm.capture.position_remapping.remap_positions takes to run it.

    Returns:
        The step, and how its program learns which slots count.

    Raises:
        CaptureError: [static-positions] if its code counts places in a way that was not found.
    """
    captured, relocation = remap_positions(captured, windowed=is_windowed(model.config), **values)
    if relocation is None:
        raise CaptureError(
            f"{type(model).__name__}: its {part} must count tokens in a way that is known, for the "
            "static pipeline; got one that counts them otherwise. Run it in the dynamic pipeline.",
            code="static-positions",
        )
    return captured, relocation


def lower_static_step(
    captured: CapturedStep, *, name: str, precision: Precision
) -> tuple[ov.Model, StaticLayout]:
    """Lowers a step whose cache is an input of fixed size.

    Args:
        captured: the step; its graph is changed.
        name: of the program.
        precision: what keys and values are stored as.

    Returns:
        The program, its inputs named as the step's are, and its layout.

    Raises:
        CaptureError: [static-cache] as make_static does.
    """
    share_masks(captured.graph_module)
    static = make_static(captured, cache_dtype(precision))
    lowered = lower(captured.graph_module, name=name).model
    names = [*captured.inputs, *captured.cache_names]
    for parameter, port in zip(lowered.get_parameters(), names, strict=True):
        parameter.set_friendly_name(port)
        parameter.get_output_tensor(0).set_names({port})
    return lowered, static
