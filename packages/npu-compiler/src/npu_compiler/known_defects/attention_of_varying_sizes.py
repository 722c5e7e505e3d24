"""Attention with dynamic shapes: right at the first sizes, wrong at later, larger sizes.

The CPU plugin's kernel generator fuses the two products and the softmax between them into one node.
With dynamic shapes, the node keeps state from earlier sizes.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.entry import KnownDefect, Reproducer

__all__ = ["DEFECT"]

_HEADS, _SIZE = 4, 8


def _occurs(model: ov.Model) -> bool:
    # With a cache as state, the plugin uses another node, which is right.
    if model.get_sinks():
        return False
    kinds = ("Softmax", "ScaledDotProductAttention")
    return any(
        node.get_type_name() in kinds and node.output(0).get_partial_shape().is_dynamic
        for node in model.get_ops()
    )


def _reproducer() -> Reproducer:
    shape = ov.PartialShape([-1, _HEADS, -1, _SIZE])
    parts = [ops.parameter(shape, np.float32) for _ in range(3)]
    scores = ops.matmul(parts[0], parts[1], False, True)
    model = ov.Model([ops.matmul(ops.softmax(scores, -1), parts[2], False, False)], parts)
    draw = np.random.default_rng(0).standard_normal
    first = list(draw((3, 1, _HEADS, 1, _SIZE)).astype(np.float32))
    later = list(draw((3, 4, _HEADS, 9, _SIZE)).astype(np.float32))
    weights = np.exp(later[0] @ later[1].swapaxes(-1, -2))
    weights /= weights.sum(-1, keepdims=True)
    return Reproducer(model, later, weights @ later[2], before=(first,))


DEFECT = KnownDefect(
    name="attention-of-varying-sizes",
    summary="Attention with dynamic shapes is wrong for larger sizes than in an earlier run.",
    condition="dynamic shapes, no cache as state; a run with one token, then one with more. Seen "
    "only on a processor with AVX2; the workaround is used on every processor",
    devices=("CPU",),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[CPU] Dynamic fused attention (Snippets) is wrong after a run with smaller sizes (AVX2)

MatMul-Softmax-MatMul (or ScaledDotProductAttention) with shapes [?,4,?,8]: a run with (1,4,1,8) is
right, the next one of the same request with (4,4,9,8) is off by 10 to 36, a third one with
(1,4,3,8) is right again. SNIPPETS_MODE=DISABLE is right throughout.""",
    reproducer=_reproducer,
    occurs=_occurs,
    options={"SNIPPETS_MODE": "DISABLE"},
)
