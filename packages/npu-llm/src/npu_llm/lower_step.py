"""Lowers a model's captured step to a stateful program on disk, in the wished precision.

Capturing is npu_llm.capture's work; the table of converters, compression and the change of the
cache into state are npu_compiler's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import fx

from npu_compiler.lowering import lower
from npu_compiler.programs.load import write_model
from npu_compiler.quantize import compress_weights
from npu_compiler.stateful import StateVariable, make_stateful
from npu_llm.capture import CapturedStep, capture_step
from npu_llm.functional import make_functional
from npu_llm.precision import Precision
from npu_llm.progress import Progress

__all__ = ["save_step"]

# What stands for "not seen": the lowest float16. float32's own minimum becomes -inf in half
# precision, and a row of -inf becomes NaN.
_MASKED = -65504.0
_aten = torch.ops.aten


def save_step(
    model: Any, path: Path, *, precision: Precision, progress: Progress
) -> dict[str, Any]:
    """Captures a model's step and saves it as IR: `path` and the weights beside it.

    Args:
        model: a decoder-only transformers model in float32, on cpu.
        path: the .xml file to write.
        precision: how to store the weights.
        progress: where to report.

    Returns:
        What a reader may want to know of the step: layers, and the conditions of the trace.

    Raises:
        CaptureError: when the model cannot be captured.
        npu_compiler.errors.LoweringError: when one of its calls has no converter.
    """
    with progress.stage("capture"):
        captured = capture_step(model, on_progress=progress.advance)
    with progress.stage("lower"):
        make_functional(captured.graph_module)
        _share_masks(captured.graph_module)
        lowered = lower(captured.graph_module, name=type(model).__name__)
        _name_ports(lowered.model, captured)
        stateful = make_stateful(lowered.model, _variables(captured))
    if precision.weights in ("int8", "int4"):
        with progress.stage("compress"):
            compress_weights(stateful, mode=precision.weights)
    with progress.stage("save"):
        write_model(stateful, path, half=_fits_half(model, precision))
    return {"layers": len(captured.layers), "limits": list(captured.limits)}


def _fits_half(model: Any, precision: Precision) -> bool:
    """Whether the weights may be stored as float16, which has three bits more than bfloat16."""
    if precision.weights not in ("bfloat16", "float16"):
        return False
    return all(float(weight.detach().abs().max()) <= -_MASKED for weight in model.parameters())


def _variables(captured: CapturedStep) -> list[StateVariable]:
    first = len(captured.inputs)
    return [
        StateVariable(f"past.{index // 2}.{('key', 'value')[index % 2]}", first + index, 1 + index)
        for index in range(2 * len(captured.layers))
    ]


def _name_ports(model: Any, captured: CapturedStep) -> None:
    for parameter, name in zip(model.get_parameters(), captured.inputs, strict=False):
        parameter.set_friendly_name(name)
        parameter.get_output_tensor(0).set_names({name})
    model.get_results()[0].get_output_tensor(0).set_names({"logits"})


def _share_masks(graph_module: fx.GraphModule) -> None:
    """Turns each boolean mask into an additive one, once for all layers that read it.

    Attention gives 0 for a query that may see nothing, which lowering honours in each layer. Here
    such queries are padding, whose results nobody reads.
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
            with graph.inserting_after(mask):
                chosen = graph.call_function(_aten.where.Scalar, (mask, 0.0, _MASKED))
            with mask.meta["val"].fake_mode:
                chosen.meta["val"] = torch.where(mask.meta["val"], 0.0, _MASKED)
            additive[mask] = chosen
        node.replace_input_with(mask, additive[mask])
    graph_module.recompile()
