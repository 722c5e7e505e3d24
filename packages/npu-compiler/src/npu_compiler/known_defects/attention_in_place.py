"""Attention with as many tokens as heads: the CPU plugin overwrites the query with the result.

Its kernel generator fuses the two products, the softmax and the transposes around them into one
node. The node then declares that its result may share the query's memory, because both have the
same shape. With a transpose on only one side, rows of the result overwrite rows of other heads'
queries before they are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.entry import KnownDefect, Reproducer, put_in_place

__all__ = ["DEFECT", "RESHAPING", "attention"]

_SWAP = [0, 2, 1, 3]
_ELEMENTWISE = frozenset(
    {
        *("Abs", "Clamp", "Convert", "Elu", "Exp", "Negative", "PRelu", "Relu", "Sigmoid", "Sqrt"),
        *("Swish", "Tanh", "Add", "Divide", "Maximum", "Minimum", "Multiply", "Power", "Subtract"),
        "Select",
    }
)

# These keep the memory layout: the plugin moves transposes past them, or removes them.
RESHAPING = frozenset({"Reshape", "Squeeze", "Unsqueeze"})

# Masks, scales, casts and reshapes around the products.
_REACH = 16


def _avoid(model: ov.Model) -> int:
    """Moves the transposes of each such attention through rank 5, which is not fused."""
    found = [transpose for node in model.get_ops() for transpose in _suspects(node)]
    transposes = {transpose.get_instance_id(): transpose for transpose in found}
    for transpose in transposes.values():
        _raise_rank(transpose)
    if transposes:
        model.validate_nodes_and_infer_types()
    return len(transposes)


def _suspects(node: ov.Node) -> list[ov.Node]:
    """Returns the transposes around an attention that keep its shape.

    With one on each side, both may be fused, and sharing memory is then correct. But the plugin may
    fuse only one of them (a scale or a split before the query is enough), which cannot be detected
    here.
    """
    ends = attention(node)
    if ends is None:
        return []
    swaps = (_swap_before(ends[0]), _swap_after(ends[1]))
    return [swap for swap in swaps if swap is not None and _keeps_shape(swap)]


def attention(node: ov.Node) -> tuple[ov.Output, ov.Node] | None:
    """Returns the query and the last product of a Softmax's attention, or None."""
    kind = node.get_type_name()
    if kind not in ("Softmax", "ScaledDotProductAttention") or not _is_static(node.output(0)):
        return None
    if kind == "ScaledDotProductAttention":
        return node.input_value(0), node
    if node.get_axis() not in (len(node.get_output_shape(0)) - 1, -1):
        return None
    first, second = _product_before(node), _product_after(node)
    return None if first is None or second is None else (first.input_value(0), second)


def _swap_before(query: ov.Output) -> ov.Node | None:
    waiting, seen = [query.get_node()], 0
    while waiting and seen < _REACH:
        node, seen = waiting.pop(0), seen + 1
        if _is_swap(node):
            return node
        waiting += _sources(node)
    return None


def _swap_after(product: ov.Node) -> ov.Node | None:
    node = _only_user(product)
    for _ in range(_REACH):
        if node is None or _is_swap(node):
            return node
        if node.get_type_name() not in _ELEMENTWISE | RESHAPING:
            return None
        node = _only_user(node)
    return None


def _sources(node: ov.Node) -> list[ov.Node]:
    """Returns the data inputs of an elementwise operation, or of a reshape."""
    if node.get_type_name() in RESHAPING:
        return [node.input_value(0).get_node()]
    if node.get_type_name() in _ELEMENTWISE:
        return [value.get_node() for value in node.input_values()]
    return []


def _keeps_shape(swap: ov.Node) -> bool:
    """Whether there are as many heads as tokens: only then query and result share memory."""
    if not _is_static(swap.output(0)):
        return False
    shape = list(swap.get_output_shape(0))
    return bool(shape[1] == shape[2] > 1)


def _raise_rank(transpose: ov.Node) -> None:
    shape = list(transpose.get_output_shape(0))
    wide = ops.unsqueeze(transpose.input_value(0), ops.constant([4], ov.Type.i64))
    swapped = ops.transpose(wide, ops.constant([*_SWAP, 4], ov.Type.i64))
    flat = ops.reshape(swapped, ops.constant(shape, ov.Type.i64), False)
    put_in_place(transpose, flat)


def _product_before(softmax: ov.Node) -> ov.Node | None:
    waiting, seen = [softmax.input_value(0).get_node()], 0
    while waiting and seen < _REACH:
        node, seen = waiting.pop(), seen + 1
        if node.get_type_name() == "MatMul":
            return node
        waiting += reversed(_sources(node))
    return None


def _product_after(softmax: ov.Node) -> ov.Node | None:
    node: ov.Node | None = softmax
    for _ in range(_REACH):
        node = None if node is None else _only_user(node)
        if node is None or node.get_type_name() not in _ELEMENTWISE | RESHAPING:
            break
    return node if node is not None and node.get_type_name() == "MatMul" else None


def _only_user(node: ov.Node) -> ov.Node | None:
    users = list(node.output(0).get_target_inputs())
    return users[0].get_node() if len(users) == 1 else None


def _is_swap(node: ov.Node) -> bool:
    """Whether a node swaps heads and tokens."""
    if node.get_type_name() != "Transpose":
        return False
    order: Any = node.input_value(1).get_node()
    return bool(order.get_type_name() == "Constant" and order.get_data().tolist() == _SWAP)


def _is_static(output: ov.Output) -> bool:
    return bool(output.get_partial_shape().is_static)


def _reproducer() -> Reproducer:
    heads = tokens = 4
    query, key, value = (ops.parameter([1, heads, tokens, 8], np.float32) for _ in range(3))
    scores = ops.matmul(ops.multiply(query, ops.constant(np.float32(0.5))), key, False, True)
    mixed = ops.matmul(ops.softmax(scores, -1), value, False, False)
    model = ov.Model([ops.transpose(mixed, ops.constant(np.array(_SWAP)))], [query, key, value])
    given = np.random.default_rng(0).standard_normal((3, 1, heads, tokens, 8)).astype(np.float32)
    weights = np.exp(given[0] * 0.5 @ given[1].swapaxes(-1, -2))
    weights /= weights.sum(-1, keepdims=True)
    return Reproducer(model, list(given), (weights @ given[2]).transpose(_SWAP))


DEFECT = KnownDefect(
    name="attention-in-place",
    summary="Attention with as many tokens as heads mixes rows of different heads.",
    condition="static shapes; as many tokens as heads; the plugin fuses a transpose by (0, 2, 1, "
    "3) of the query or of the result, not both. It does so across elementwise operations and "
    "reshapes, and may omit one of two",
    devices=("CPU",),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[CPU] Fused attention (Snippets) writes its output over q when one side alone has a transpose

Subgraph::getSupportedDescriptors lets output 0 share the memory of input 0 when canBeInPlace()
finds equal shapes (src/plugins/intel_cpu/src/nodes/subgraph.cpp). MHA tokenization fuses Transpose
(0,2,1,3) of q or of the output into the Subgraph, so equal shapes no longer mean equal places:
block (b, h) of the output overwrites rows of q of heads that have not been read. The result is
wrong for q (b, h, n, d), output (b, n, h, d) with n == h, where q's producer has this one consumer.
SNIPPETS_MODE=DISABLE is right. Expected: no sharing when the layouts of the two ports differ.""",
    reproducer=_reproducer,
    avoid=_avoid,
    options={"SNIPPETS_MODE": "DISABLE"},
)
