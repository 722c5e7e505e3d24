"""Arithmetic with a constant of one element and higher rank: the result has the lower rank.

A common transformation (MoveEltwiseUpThroughDataMovScalar) moves the operation before a reshape,
transpose or gather, and drops the constant's shape. It lacks a check of the constant's rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.entry import KnownDefect, Reproducer

__all__ = ["DEFECT"]

_ARITHMETIC = frozenset(
    {
        *("Add", "Divide", "FloorMod", "Maximum", "Minimum", "Mod", "Multiply", "Power"),
        *("SquaredDifference", "Subtract"),
    }
)


def _avoid(model: ov.Model) -> int:
    """Gives the operand of lower rank leading axes of size 1."""
    count = 0
    for node in model.get_ops():
        if node.get_type_name() not in _ARITHMETIC:
            continue
        low, high = sorted(node.inputs(), key=_rank)
        added = _rank(high) - _rank(low)
        # Not only for constants: others may be folded to a constant.
        if _rank(low) >= 0 and added and _has_one_element(high):
            wide = ops.unsqueeze(low.get_source_output(), ops.constant(np.arange(added)))
            low.replace_source_output(wide.output(0))
            count += 1
    return count


def _rank(operand: Any) -> int:
    rank = operand.get_partial_shape().rank
    return -1 if rank.is_dynamic else int(rank.get_length())


def _has_one_element(operand: Any) -> bool:
    return all(size == 1 for size in operand.get_partial_shape())


def _reproducer() -> Reproducer:
    given = ops.parameter([2, 2], np.float32)
    flat = ops.reshape(given, ops.constant(np.array([4])), False)
    total = ops.add(flat, ops.constant(np.ones((1, 1), np.float32)))
    # The shape would be wrong as well; here the sum is over the wrong axis.
    result = ops.add(
        ops.reduce_sum(total, ops.constant(np.array([0])), False),
        ops.constant(np.zeros(4, np.float32)),
    )
    values = np.arange(4, dtype=np.float32)
    return Reproducer(ov.Model([result], [given]), [values.reshape(2, 2)], values + 1)


DEFECT = KnownDefect(
    name="constant-of-higher-rank",
    summary="Arithmetic with a constant of one element and higher rank keeps the lower rank.",
    condition="an arithmetic operation of two operands, a constant of one element whose rank is "
    "higher than that of the other operand, and Reshape, Squeeze, Unsqueeze, Transpose, Gather or "
    "Roll before the operation",
    devices=("CPU", "GPU"),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[Core] MoveEltwiseUpThroughDataMovScalar loses the rank of a one-element constant

Add(Reshape(x, {4}), Constant {1,1}) of x with shape {2,2} has the shape {1,4}, and after
compile_model on CPU {4}; the same for Subtract, Multiply, Divide, Power, Maximum, Minimum,
SquaredDifference and FloorMod, and for Squeeze, Unsqueeze, Transpose, Gather and Roll in the place
of Reshape. The transformation replaces the constant by a scalar, which is right only if its rank is
not higher than that of the other operand. Inside of a model the results are silently wrong, such as
those of a reduction over axis 0.""",
    reproducer=_reproducer,
    avoid=_avoid,
)
