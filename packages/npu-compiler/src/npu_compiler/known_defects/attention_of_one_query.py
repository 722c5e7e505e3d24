"""Attention of one query in half precision with a mask shared by all heads: garbage scores.

The CPU plugin's kernel generator fuses the two products, the mask and the softmax into one node,
and reads the float32 mask in the half precision of the products.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.entry import KnownDefect, Reproducer

__all__ = ["DEFECT"]

_Mask: TypeAlias = tuple[Any, list[int], list[int]]


def _avoid(model: ov.Model) -> int:
    """Gives each head a separate mask; a broadcast would be folded into the addition."""
    found = [place for node in model.get_ops() if (place := _mask_of(node)) is not None]
    for mask, shape, scores in found:
        repeats = [1] * len(scores)
        axis = next(axis for axis in reversed(range(len(scores) - 2)) if scores[axis] > 1)
        repeats[axis] = scores[axis]
        whole = ops.constant(np.array([1] * (len(scores) - len(shape)) + shape, np.int64))
        wide = ops.reshape(mask.get_source_output(), whole, False)
        tiled = ops.tile(wide, ops.constant(np.array(repeats, np.int64)))
        mask.replace_source_output(tiled.output(0))
    return len(found)


def _mask_of(node: Any) -> _Mask | None:
    """Returns the input that is a suspect mask, its shape, and the shape of the scores."""
    kind = node.get_type_name()
    if kind == "ScaledDotProductAttention" and node.get_input_size() > 3:
        query, key = (_sizes(node.input_value(index)) for index in (0, 1))
        if query is None or key is None:
            return None
        return _suspect(node.input(3), [*query[:-1], key[-2]])
    if kind == "Softmax" and node.input_value(0).get_node().get_type_name() == "Add":
        total = node.input_value(0).get_node()
        scores = _sizes(total.output(0))
        if scores is not None:
            return _suspect(total.input(0), scores) or _suspect(total.input(1), scores)
    return None


def _suspect(mask: Any, scores: list[int]) -> _Mask | None:
    shape = _sizes(mask.get_source_output())
    is_one = len(scores) > 2 and scores[-2] == 1 and any(size > 1 for size in scores[:-2])
    if shape is None or not is_one or any(size != 1 for size in shape[:-1]):
        return None
    return mask, shape, scores


def _sizes(output: ov.Output) -> list[int] | None:
    shape = output.get_partial_shape()
    return None if shape.is_dynamic else [int(size) for size in shape.to_shape()]


def _reproducer() -> Reproducer:
    parts = [ops.parameter(shape, np.float32) for shape in ([1, 4, 1, 16], *[[1, 4, 9, 16]] * 2)]
    mask = ops.parameter([1, 1, 1, 9], np.float32)
    attention = ops.scaled_dot_product_attention(*parts, mask, causal=False)
    query, key = (np.zeros(part.shape, np.float32) for part in parts[:2])
    value = np.random.default_rng(0).integers(-8, 8, (1, 4, 9, 16)).astype(np.float32)
    hidden = np.zeros((1, 1, 1, 9), np.float32)
    hidden[..., 4:] = -65504.0
    expected = value[..., :4, :].mean(-2, keepdims=True)
    model = ov.Model([attention.output(0)], [*parts, mask])
    return Reproducer(model, [query, key, value, hidden], expected, hint="bf16")


DEFECT = KnownDefect(
    name="attention-of-one-query",
    summary="Attention of one query in half precision with a mask that all heads share is garbage.",
    condition="static shapes, one query, a float32 graph that is compiled for bf16 or f16, a mask "
    "that varies only along the keys; MatMul, Add, Softmax, MatMul, or the single operation",
    devices=("CPU",),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[CPU] Attention of one query with a broadcast mask returns garbage under a hint of bf16

ScaledDotProductAttention (or MatMul-Add-Softmax-MatMul) with f32 ports, query [1,4,1,16], key and
value [1,4,9,16] and mask [1,1,1,9] gives values of 1e34 and above, or NaN, under bf16 and f16. With
two queries, with a mask of [1,4,1,9], with f32, or with SNIPPETS_MODE=DISABLE it is right.""",
    reproducer=_reproducer,
    avoid=_avoid,
)
