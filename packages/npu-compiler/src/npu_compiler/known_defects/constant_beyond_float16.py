"""NaN and infinities in float32 constants, which become 65504 or -65504 in float16.

The CPU plugin clamps float32 constants when it narrows them. It does not change float16 constants,
even if a conversion to float32 follows, so these constants are narrowed before the compilation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.entry import KnownDefect, Reproducer, put_in_place

__all__ = ["DEFECT"]

_LARGEST = np.finfo(np.float16).max


def _avoid(model: ov.Model) -> int:
    found = [node for node in model.get_ops() if _is_suspect(node)]
    for node in found:
        values = node.data
        # Finite values are clamped as by the plugin: masks often have the least float32.
        inside = np.where(np.isfinite(values), np.clip(values, -_LARGEST, _LARGEST), values)
        put_in_place(node, ops.convert(ops.constant(inside.astype(np.float16)), "f32"))
    return len(found)


def _is_suspect(node: Any) -> bool:
    if node.get_type_name() != "Constant" or node.get_element_type() != ov.Type.f32:
        return False
    return not bool(np.isfinite(node.data).all())


def _reproducer() -> Reproducer:
    given = ops.parameter([2], np.float32)
    known = ops.constant(np.array([np.nan, 1], np.float32))
    return Reproducer(
        ov.Model([ops.multiply(given, known)], [given]),
        [np.ones(2, np.float32)],
        np.array([np.nan, 1], np.float32),
        hint="f16",
    )


DEFECT = KnownDefect(
    name="constant-beyond-float16",
    summary="NaN and infinities in float32 constants become 65504 or -65504 in float16.",
    condition="a float32 constant with NaN or an infinity, compiled for f16 on a processor with "
    "float16 arithmetic",
    devices=("CPU",),
    hints=("f16",),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[CPU] NaN and infinite f32 constants become 65504 under INFERENCE_PRECISION_HINT f16

Multiply(x, Constant {NaN, inf, -inf} of f32) of ones is {65504, 65504, -65504} under f16 on
processors with AVX512-FP16. With a Constant of f16 that Convert makes f32 it is {NaN, inf, -inf}.
Expected: NaN and infinities stay what they are; clamping should touch finite values alone.""",
    reproducer=_reproducer,
    avoid=_avoid,
)
