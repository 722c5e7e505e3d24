"""Tile of a dynamic tensor with one channel: the CPU plugin repeats wrong axes.

With one channel, a plain layout is also one with the channels last. The plugin reorders the
repeats for the latter, but not the sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
from openvino.opset1 import squeeze

from npu_compiler.known_defects.entry import KnownDefect, Reproducer, put_in_place

__all__ = ["DEFECT"]

# Above the ranks that the plugin computes with the channels last.
_RANK = 6


def _avoid(model: ov.Model) -> int:
    """Computes each such Tile in rank 6."""
    found = [node for node in model.get_ops() if _is_suspect(node)]
    for node in found:
        rank = len(node.get_output_partial_shape(0))
        before = np.arange(_RANK - len(node.input_value(0).get_partial_shape()))
        wide = ops.tile(ops.unsqueeze(node.input_value(0), before), node.input_value(1))
        put_in_place(node, squeeze(wide, ops.constant(np.arange(_RANK - rank))))
    return len(found)


def _is_suspect(node: ov.Node) -> bool:
    if node.get_type_name() != "Tile":
        return False
    source, result = (port.get_partial_shape() for port in (node.input(0), node.output(0)))
    if source.rank.is_dynamic or source.is_static or result.rank.is_dynamic:
        return False
    if len(source) not in (4, 5) or len(result) > _RANK or source[1] != 1:
        return False
    repeats: Any = node.input_value(1).get_node()
    # Static shapes, and repeats of one axis besides the first, are right.
    is_known = repeats.get_type_name() == "Constant"
    return not is_known or int((repeats.get_data()[1 - len(source) :] != 1).sum()) > 1


def _reproducer() -> Reproducer:
    given = ops.parameter([1, 1, -1, 4], np.float32)
    repeated = ops.tile(given, ops.constant(np.array([1, 2, 1, 2])))
    values = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    return Reproducer(ov.Model([repeated], [given]), [values], np.tile(values, (1, 2, 1, 2)))


DEFECT = KnownDefect(
    name="tile-of-one-channel",
    summary="Tile of a dynamic tensor with axis 1 of size 1 repeats wrong axes.",
    condition="dynamic shapes of rank 4 or 5; axis 1 has the static size 1; constant repeats of "
    "two axes besides the first",
    devices=("CPU",),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[CPU] Tile repeats wrong axes of a dynamic input {?,1,?,?}

Tile(x, {1,2,1,2}) of x with the dynamic shape {1,1,?,4} gives wrong values; {1,2,2,1} also, and
those of rank 5 with axis 1 of size 1. Static shapes are right. prepareOptimizedParams (src/plugins/
intel_cpu/src/nodes/common/tile_broadcast_utils.cpp) moves the second repeat to the end if the input
has its channels last. The plain layout of one channel passes this check, but its dimensions are not
moved. Expected: repeats and dimensions in one order.""",
    reproducer=_reproducer,
    avoid=_avoid,
)
