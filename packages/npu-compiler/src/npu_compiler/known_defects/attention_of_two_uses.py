"""Attention whose result is transposed and used otherwise too: compiling may end the process.

A pass of the CPU plugin reads through a null pointer when its generator of kernels has taken the
attention in, together with a transpose before it, and the attention has both users.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.entry import KnownDefect, Reproducer

__all__ = ["DEFECT"]

_SWAP = [0, 2, 1, 3]


def _occurs(model: ov.Model) -> bool:
    nodes = model.get_ops()
    if not any(node.get_type_name() in ("Softmax", "ScaledDotProductAttention") for node in nodes):
        return False
    return any(_is_suspect(node) for node in nodes)


def _is_suspect(node: ov.Node) -> bool:
    if node.get_type_name() not in ("MatMul", "ScaledDotProductAttention"):
        return False
    users = [user.get_node().get_type_name() for user in node.output(0).get_target_inputs()]
    return len(users) > 1 and "Transpose" in users


def _reproducer() -> Reproducer:
    first = ops.parameter([1, 5, 2, 8], np.float32)
    key, value = (ops.parameter([1, 2, 5, 8], np.float32) for _ in range(2))
    swap = ops.constant(np.array(_SWAP))
    query = ops.transpose(first, swap)
    scores = ops.matmul(query, key, False, True)
    mixed = ops.matmul(ops.softmax(scores, -1), value, False, False)
    results = [ops.transpose(mixed, swap), ops.subtract(mixed, query)]
    given = np.random.default_rng(0).standard_normal((3, 1, 2, 5, 8)).astype(np.float32)
    weights = np.exp(given[0] @ given[1].swapaxes(-1, -2))
    weights /= weights.sum(-1, keepdims=True)
    inputs = [given[0].transpose(_SWAP), *given[1:]]
    expected = (weights @ given[2]).transpose(_SWAP)
    return Reproducer(ov.Model(results, [first, key, value]), inputs, expected)


DEFECT = KnownDefect(
    name="attention-of-two-uses",
    summary="Compiling attention whose result is transposed and used otherwise too ends the "
    "process.",
    condition="static shapes; a transpose by (0, 2, 1, 3) of the query, key or value and one of "
    "the result, which is also the left operand of Subtract or Divide, or added to the query",
    devices=("CPU",),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[CPU] SIGSEGV in compile_model: attention whose result is transposed and has another user

A = MatMul(Softmax(MatMul(Transpose(q), k)), v) with the two users Transpose(A) and Subtract(A, x),
Divide(A, x), or Add(Multiply(Transpose(q), c), A) where that product is the query: a matcher pass
of the CPU plugin reads through a null pointer (a load of 0xc0 from it, below GraphRewrite::
apply_matcher_passes), if the transpose is the first result. Add(A, Transpose(q)), Multiply and
Subtract(x, A) are fine, and so is SNIPPETS_MODE=DISABLE.""",
    reproducer=_reproducer,
    occurs=_occurs,
    options={"SNIPPETS_MODE": "DISABLE"},
    ends_process=True,
)
