"""Abs of a vector that OpenVINO can evaluate at compile time: the sign stays.

A common transformation for shapes (AbsSinking) removes an Abs of rank 1 if its input cannot be
negative. It also does so for negative inputs that are computed from constants or shapes.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops
from openvino.opset1 import squeeze

from npu_compiler.known_defects.entry import KnownDefect, Reproducer, put_in_place

__all__ = ["DEFECT"]


def _avoid(model: ov.Model) -> int:
    """Computes each Abs of a vector in rank 2, which the transformation does not match."""
    found = [node for node in model.get_ops() if _is_suspect(node)]
    for node in found:
        first = ops.constant(np.array([0]))
        wide = ops.abs(ops.unsqueeze(node.input_value(0), first))
        flat = squeeze(wide, first)
        put_in_place(node, flat)
    return len(found)


def _is_suspect(node: ov.Node) -> bool:
    if node.get_type_name() != "Abs":
        return False
    rank = node.output(0).get_partial_shape().rank
    return bool(rank.is_dynamic or rank.get_length() == 1)


def _reproducer() -> Reproducer:
    given = ops.parameter([3], np.float32)
    known = ops.abs(ops.negative(ops.constant(np.array([1, -2, 3], np.float32))))
    return Reproducer(
        ov.Model([ops.multiply(known, given)], [given]),
        [np.ones(3, np.float32)],
        np.array([1, 2, 3], np.float32),
    )


DEFECT = KnownDefect(
    name="absolute-of-computed-constant",
    summary="Abs of a vector that is computed from constants or shapes returns it unchanged.",
    condition="rank 1; the input's values follow from constants or shapes by arithmetic",
    devices=("CPU", "GPU", "NPU"),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[Core] AbsSinking removes Abs of negative values

Abs(Negative(Constant {1, -2, 3})) is {-1, 2, -3} after compile_model on CPU, for f32, i32 and i64,
with Subtract, Multiply, Select, Convert or Range in the place of Negative, and so is
Abs(Subtract(ShapeOf(x), 10)) of a dynamic x. Rank 2 is right, and so is an input that is a Constant
itself or a Concat of them. The transformation AbsSinking matches Abs of rank 1 and takes it out
where the bounds of its input are known; it seems to do so where they are negative, too.""",
    reproducer=_reproducer,
    avoid=_avoid,
)
