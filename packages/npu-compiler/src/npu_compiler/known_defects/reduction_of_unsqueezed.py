"""A reduction with keep_dims of a tensor with an added axis of size 1: axes are swapped.

A common transformation (PullUnsqueezeThroughReduce) moves the axis after the reduction. It counts
axes as if the reduction had dropped its axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.entry import KnownDefect, Reproducer, put_in_place

__all__ = ["DEFECT"]

_REDUCTIONS = {
    "ReduceSum": ops.reduce_sum,
    "ReduceMean": ops.reduce_mean,
    "ReduceMax": ops.reduce_max,
    "ReduceMin": ops.reduce_min,
    "ReduceProd": ops.reduce_prod,
    "ReduceL1": ops.reduce_l1,
    "ReduceL2": ops.reduce_l2,
    "ReduceLogicalAnd": ops.reduce_logical_and,
    "ReduceLogicalOr": ops.reduce_logical_or,
}

# Operations that add an axis of size 1, and those that may be removed before the reduction.
_MOVING = frozenset({"Broadcast", "Convert", "Reshape", "Slice", "Squeeze", "Tile", "Unsqueeze"})


def _avoid(model: ov.Model) -> int:
    """Makes the reduction drop its axes, and adds them again."""
    found = [node for node in model.get_ops() if _is_suspect(node)]
    for node in found:
        axes = ops.constant(np.array(_axes(node)))
        make = _REDUCTIONS[node.get_type_name()]
        kept = ops.unsqueeze(make(node.input_value(0), axes, False), axes)
        put_in_place(node, kept)
    return len(found)


def _is_suspect(node: ov.Node) -> bool:
    if node.get_type_name() not in _REDUCTIONS or not node.get_attributes()["keep_dims"]:
        return False
    source = node.input_value(0)
    shape = source.get_partial_shape()
    if source.get_node().get_type_name() not in _MOVING or shape.rank.is_dynamic:
        return False
    axes = _axes(node)
    return bool(axes) and any(
        size == 1 and axis > axes[0] and axis not in axes for axis, size in enumerate(shape)
    )


def _axes(node: ov.Node) -> list[int]:
    """Returns sorted axes, counted from the front; none if they are not constant."""
    given: Any = node.input_value(1).get_node()
    if given.get_type_name() != "Constant":
        return []
    rank = node.input_value(0).get_partial_shape().rank.get_length()
    return sorted({int(axis) % rank for axis in given.get_data().reshape(-1)})


def _reproducer() -> Reproducer:
    given = ops.parameter([2, 3, 4], np.float32)
    wide = ops.unsqueeze(given, ops.constant(np.array([3])))
    total = ops.reduce_sum(wide, ops.constant(np.array([0])), True)
    # The shape would be wrong as well; here it affects only the broadcast of the sum.
    result = ops.reduce_sum(
        ops.add(total, ops.constant(np.arange(4, dtype=np.float32))),
        ops.constant(np.array([0, 2])),
        False,
    )
    values = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    expected = (values[..., None].sum(0) + np.arange(4, dtype=np.float32)).sum(1)
    return Reproducer(ov.Model([result], [given]), [values], expected)


DEFECT = KnownDefect(
    name="reduction-of-unsqueezed",
    summary="A reduction with keep_dims swaps an axis of size 1 after its axes with another.",
    condition="static shapes; the input of the reduction has an axis of size 1 that Unsqueeze or "
    "Reshape made, after the first of the reduced axes; keep_dims",
    devices=("CPU", "GPU", "NPU"),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[Core] PullUnsqueezeThroughReduce gives a wrong shape for keep_dims=true

ReduceSum(Unsqueeze(x, 3), 0, keep_dims=true) of x with shape {2,3,4} has the shape {1,3,4,1}, and
after compile_model on CPU {1,3,1,4}; the same for every Reduce operation, and for a Reshape in the
place of Unsqueeze. keep_dims=false is right. The transformation seems to lower the axis of the
Unsqueeze by the number of reduced axes before it, which is right only where they are dropped.
Inside of a model the results are silently wrong where the other shape can be broadcast.""",
    reproducer=_reproducer,
    avoid=_avoid,
)
