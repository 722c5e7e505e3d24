"""Greater with NaN on processors with AVX-512: true if either side is NaN.

The CPU plugin computes "not less or equal", which is true if one side is NaN. Less is computed
directly, so the same comparison with swapped sides is right.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.entry import KnownDefect, Reproducer, put_in_place

__all__ = ["DEFECT"]

_EXCHANGED = {"Greater": ops.less, "GreaterEqual": ops.less_equal}


def _avoid(model: ov.Model) -> int:
    found = [node for node in model.get_ops() if _is_suspect(node)]
    for node in found:
        left, right = node.input_values()
        broadcast = node.get_attributes()["auto_broadcast"]
        exchanged = _EXCHANGED[node.get_type_name()](right, left, broadcast)
        put_in_place(node, exchanged)
    return len(found)


def _is_suspect(node: ov.Node) -> bool:
    return node.get_type_name() in _EXCHANGED and bool(node.get_input_element_type(0).is_real())


def _reproducer() -> Reproducer:
    left, right = (ops.parameter([1, 4], np.float32) for _ in range(2))
    model = ov.Model([ops.convert(ops.greater(left, right), "f32")], [left, right])
    nan = np.nan
    given = np.array([[[nan, 1, 3, nan]], [[1, nan, 2, nan]]], np.float32)
    return Reproducer(model, list(given), np.array([[0, 0, 1, 0]], np.float32))


DEFECT = KnownDefect(
    name="comparison-with-nan",
    summary="Greater and GreaterEqual are true if one side is NaN.",
    condition="floating point operands, a processor with AVX-512",
    devices=("CPU",),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[CPU] Greater and GreaterEqual give true for NaN on AVX-512

With AVX-512, jit_greater_emitter and jit_greater_equal_emitter (src/plugins/intel_cpu/src/emitters/
plugin/x64/jit_eltwise_emitters.cpp) give vcmpps the predicates _cmp_gt_os and _cmp_ge_os. The
results are those of 6 and 5, "not less or equal" and "not less", which are true for unordered
operands: Greater(NaN, 1) and Greater(1, NaN) are 1. Less is right, and so is AVX2, which has
instructions of its own for them. Expected: predicates 14 and 13.""",
    reproducer=_reproducer,
    avoid=_avoid,
)
