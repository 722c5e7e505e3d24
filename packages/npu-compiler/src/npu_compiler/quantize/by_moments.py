"""Int4 weights of a whole model by GPTQ, each rounded for what the quantized model feeds it.

NNCF has GPTQ too, and serves less well: on SmolLM2-135M-Instruct, groups of 64, 64 calls, it lost
8.3 % of perplexity with AWQ and scale estimation where this lost 3.8 % (2026-11-20): it takes a
product's inputs as the layers before, already rounded, make them, and does not make up for what
their errors did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch

from npu_compiler.quantize.compress import WeightUses, replace_weight, weight_uses
from npu_compiler.quantize.gptq import round_by_moments
from npu_compiler.quantize.segments import SegmentedModel
from npu_compiler.quantize.weights import QuantizedWeight, fitting_group, quantize_weight

__all__ = ["compress_by_moments"]

_Array = np.ndarray[Any, Any]
# Elements of a table below which it is no embedding worth compressing.
_SMALL_TABLE = 4096


def compress_by_moments(
    model: ov.Model,
    samples: Sequence[Sequence[Any]],
    *,
    group_size: int | None,
    symmetric: bool = False,
) -> None:
    """Compresses, in place, the weights of matrix products to int4 one after the other.

    Each is rounded for the inputs that come out of the weights rounded before it, so that its
    product comes nearest to what it was in the original model, which runs beside. Embeddings and
    the last product become int8, as do rows that no group of 32 or more divides. A weight of
    several products is rounded for the first.

    Args:
        model: float32, its nodes under names of their own.
        samples: one call each: arrays for the model's inputs, in order.
        group_size: 32, 64 or 128, or None for one scale per output channel.
        symmetric: without zero points.
    """
    position = {node.get_friendly_name(): at for at, node in enumerate(model.get_ordered_ops())}

    def first_product(uses: WeightUses) -> int:
        return position[uses.products[0].get_friendly_name()] if uses.products else -1

    original = model.clone()
    kept = (uses for uses in weight_uses(model) if uses.products or uses.elements >= _SMALL_TABLE)
    found = sorted(kept, key=first_product)
    rounded: list[tuple[WeightUses, int]] = []
    for uses in found:
        group = fitting_group(uses.columns, group_size)
        is_last = uses is found[-1] and len(found) > 1
        if group is None or uses.gathers or is_last:
            replace_weight(uses, quantize_weight(uses.matrix(), bits=8, symmetric=symmetric))
        else:
            rounded.append((uses, group))
    _round_in_turn(original, model.clone(), rounded, samples=samples, symmetric=symmetric)
    model.validate_nodes_and_infer_types()


def _round_in_turn(
    original: ov.Model,
    twin: ov.Model,
    rounded: Sequence[tuple[WeightUses, int]],
    *,
    samples: Sequence[Sequence[Any]],
    symmetric: bool,
) -> None:
    """Rounds weights, with the model as it was and as it becomes running beside each other."""
    exact_nodes = {node.get_friendly_name(): node for node in original.get_ops()}
    nodes = {node.get_friendly_name(): node for node in twin.get_ops()}
    exact_run, run = SegmentedModel(original, samples), SegmentedModel(twin, samples)
    seen: list[_Array] = []
    sums = (torch.empty(0), torch.empty(0))
    for uses, group in rounded:
        names = [product.get_friendly_name() for product in uses.products]
        values = run.advance(nodes[names[0]].input(0))
        exact_values = exact_run.advance(exact_nodes[names[0]].input(0))
        if values is not seen:  # products that share their input share its sums
            seen = values
            is_transposed = bool(nodes[names[0]].get_attributes()["transpose_a"])
            sums = _sums(exact_values, values, is_transposed)
        quantized = round_by_moments(
            uses.matrix(), sums[0], group_size=group, symmetric=symmetric, drift=sums[1]
        )
        _set_weight([nodes[name] for name in names], quantized, uses.is_transposed)
        replace_weight(uses, quantized)


def _sums(
    exact: Sequence[_Array], values: Sequence[_Array], is_transposed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Moments and drift of a product's inputs, as round_by_moments takes them."""
    columns = values[0].shape[-2 if is_transposed else -1]
    moments = torch.zeros((columns, columns), dtype=torch.float64)
    drift = torch.zeros_like(moments)
    for before, now in zip(exact, values, strict=True):
        x, y = _rows(now, is_transposed), _rows(before, is_transposed)
        moments += x.t() @ x
        drift += (y - x).t() @ x
    return moments, drift


def _rows(value: _Array, is_transposed: bool) -> torch.Tensor:
    rows = torch.from_numpy(np.swapaxes(value, -1, -2) if is_transposed else value)
    return rows.reshape(-1, rows.shape[-1])


def _set_weight(
    products: Sequence[ov.Node], quantized: QuantizedWeight, is_transposed: bool
) -> None:
    matrix = quantized.dequantize()
    values = matrix if is_transposed else matrix.t()
    constant = ops.constant(values.contiguous().numpy())
    for product in products:
        product.input(1).replace_source_output(constant.output(0))
