"""A convolution with a kernel of one pixel, a stride and padding: the stride skips before padding.

A common transformation (ConvStridesPropagation) moves the stride of such a convolution to the
operations before it, and leaves the padding behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.entry import KnownDefect, Reproducer, put_in_place

__all__ = ["DEFECT"]


def _avoid(model: ov.Model) -> int:
    """Computes each such convolution without a stride, and skips pixels of its result."""
    found = [node for node in model.get_ops() if _is_suspect(node)]
    for node in found:
        given: Any = node.get_attributes()
        pads = (given["pads_begin"], given["pads_end"])
        count = len(given["strides"])
        whole = ops.convolution(
            *node.input_values(), [1] * count, *pads, given["dilations"], given["auto_pad"]
        )
        first, last = np.zeros(count, np.int64), np.full(count, np.iinfo(np.int64).max)
        steps, axes = np.array(given["strides"]), np.arange(2, 2 + count)
        put_in_place(node, ops.slice(whole, *map(ops.constant, (first, last, steps, axes))))
    return len(found)


def _is_suspect(node: ov.Node) -> bool:
    if node.get_type_name() != "Convolution":
        return False
    kernel, given = node.input_value(1).get_partial_shape(), node.get_attributes()
    return bool(
        kernel.is_static
        and all(size == 1 for size in list(kernel)[2:])
        and any(stride > 1 for stride in given["strides"])
        and any([*given["pads_begin"], *given["pads_end"]])
        and given["auto_pad"] == "explicit"
    )


def _reproducer() -> Reproducer:
    given = ops.parameter([1, 1, 4], np.float32)
    kernel = ops.constant(np.ones((1, 1, 1), np.float32))
    skipped = ops.convolution(ops.relu(given), kernel, [3], [1], [1], [1])
    # The shape would be wrong as well; here the sum is.
    result = ops.reduce_sum(skipped, ops.constant(np.array([2])), False)
    return Reproducer(
        ov.Model([result], [given]),
        [np.array([[[1, 2, 3, 4]]], np.float32)],
        np.array([[3]], np.float32),
    )


DEFECT = KnownDefect(
    name="stride-of-one-pixel",
    summary="A strided convolution with a kernel of one pixel skips pixels before it pads.",
    condition="static spatial sizes; a kernel of size 1, a stride and padding; an elementwise "
    "operation or another convolution before it",
    devices=("CPU", "GPU", "NPU"),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[Core] ConvStridesPropagation ignores the padding of a 1x1 convolution

Convolution(Relu(x), Constant {1,1,1}, strides {3}, pads {1}) of x with shape {1,1,4} has the shape
{1,1,2}, and after compile_model on CPU {1,1,4}; the same in two dimensions, and for Power,
Multiply, Add or Convolution in the place of Relu. can_propagate_conv_stride (src/common/
transformations/src/transformations/common_optimizations/strides_optimization.cpp) checks the kernel
alone. Expected: no propagation if pads_begin or pads_end is not 0.""",
    reproducer=_reproducer,
    avoid=_avoid,
)
