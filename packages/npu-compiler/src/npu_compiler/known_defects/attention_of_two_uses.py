"""Attention with a result that is used twice: compilation may crash the process.

A pass of the CPU plugin dereferences a null pointer if its kernel generator has fused the
attention, and a binary operation is not the first user of the result.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.attention_in_place import RESHAPING, attention
from npu_compiler.known_defects.entry import KnownDefect, Reproducer

__all__ = ["DEFECT"]


def _occurs(model: ov.Model) -> bool:
    return any(_is_suspect(node) for node in model.get_ops())


def _is_suspect(node: ov.Node) -> bool:
    ends = attention(node)
    return ends is not None and _users(ends[1]) > 1


def _users(node: ov.Node) -> int:
    """Returns the number of nodes that use a result, reshaped or not."""
    users = [user.get_node() for user in node.output(0).get_target_inputs()]
    return sum(_users(user) if user.get_type_name() in RESHAPING else 1 for user in users)


def _reproducer() -> Reproducer:
    query, key, value, other = (ops.parameter([1, 2, 4, 8], np.float32) for _ in range(4))
    scores = ops.matmul(query, key, False, True)
    mixed = ops.matmul(ops.softmax(scores, -1), value, False, False)
    results = [ops.tanh(mixed), ops.subtract(mixed, other)]
    given = np.random.default_rng(0).standard_normal((4, 1, 2, 4, 8)).astype(np.float32)
    weights = np.exp(given[0] @ given[1].swapaxes(-1, -2))
    weights /= weights.sum(-1, keepdims=True)
    model = ov.Model(results, [query, key, value, other])
    return Reproducer(model, list(given), np.tanh(weights @ given[2]))


DEFECT = KnownDefect(
    name="attention-of-two-uses",
    summary="Compiling attention whose result has two users may crash the process.",
    condition="static shapes; the result, reshaped or not, has a user and later is the left "
    "operand of Subtract or Divide, or added to a tensor",
    devices=("CPU",),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[CPU] SIGSEGV in compile_model: attention whose result has a second user

A = MatMul(Softmax(MatMul(q, k)), v) or ScaledDotProductAttention(q, k, v) with the two users
Tanh(A) and Subtract(A, x), in this order of the model's results: a matcher pass of the CPU plugin
reads through a null pointer (a load of 0xc0 from it, below GraphRewrite::apply_matcher_passes).
Transpose, Reshape or MatMul in place of Tanh, Divide(A, x), and Add(Multiply(Transpose(q), c), A)
with that product as the query do so too. Subtract(x, A) and unary operations are fine, and so is
SNIPPETS_MODE=DISABLE.""",
    reproducer=_reproducer,
    occurs=_occurs,
    options={"SNIPPETS_MODE": "DISABLE"},
    ends_process=True,
)
