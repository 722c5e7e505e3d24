"""Rewrites models for the NPU's compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset3 as opset3
import openvino.opset15 as ops
from openvino.utils.node_factory import NodeFactory

from npu_compiler.known_defects.entry import put_in_place
from npu_compiler.npu_rules.operations import node_refusals
from npu_compiler.npu_rules.source_rules import OLDEST, is_empty, mask_repeats, scaled_pieces

__all__ = ["REWRITTEN", "Rewriting", "computes_in_bfloat16", "rewrite_for_npu", "widen_bfloat16"]

# The importer's type for bfloat16.
_TAKEN = ("Parameter", "Constant", "Result", "Convert")


def computes_in_bfloat16(model: ov.Model) -> bool:
    """Whether an operation takes or returns bfloat16."""
    return any(_is_inside(node) for node in model.get_ordered_ops())


def widen_bfloat16(model: ov.Model) -> int:
    """Computes bfloat16 in float32, in place; ports and constants keep their type.

    Results are rounded to bfloat16 only once, at the end. Returns the number of changed operations.
    """
    nodes = model.get_ordered_ops()
    inside = [node for node in nodes if _is_inside(node)]
    results = [node for node in nodes if node.get_type_name() == "Result" and _gives(node)]
    for node in nodes:
        kind = node.get_type_name()
        if kind in ("Parameter", "Constant") and _gives(node):
            _cast_behind(node.output(0))
        elif kind == "Convert" and _gives(node):
            put_in_place(node, ops.convert(node.input_value(0), ov.Type.f32))
    for node in results:
        source = node.input_value(0)
        names = source.get_names()
        narrow = ops.convert(source, ov.Type.bf16).output(0)
        node.input(0).replace_source_output(narrow)
        narrow.get_tensor().set_names(names)
    model.validate_nodes_and_infer_types()
    return len(inside)


def _is_inside(node: Any) -> bool:
    if node.get_type_name() in _TAKEN:
        return False
    taken = (source.get_element_type() for source in node.input_values())
    return _gives(node) or ov.Type.bf16 in taken


def _gives(node: Any) -> bool:
    return any(output.get_element_type() == ov.Type.bf16 for output in node.outputs())


def _cast_behind(output: ov.Output) -> None:
    """Casts an output to float32 for all readers except ports of the program."""
    readers = [
        one for one in output.get_target_inputs() if one.get_node().get_type_name() != "Result"
    ]
    if readers:
        wide = ops.convert(output, ov.Type.f32).output(0)
        for reader in readers:
            reader.replace_source_output(wide)


# Key of the replacements in a saved model's runtime information.
REWRITTEN = ("npu_compiler", "rewritten")


@dataclass(frozen=True)
class Rewriting:
    """An operation that was replaced because a rule refuses it."""

    operation: str  # type and version, such as "IsNaN (opset10)"
    node: str  # the operation's name in the model
    into: str  # the replacement
    source: str  # file, line and commit of the rule

    def __str__(self) -> str:
        return f"{self.operation} of {self.node}: {self.into} [{self.source}]"


def rewrite_for_npu(model: ov.Model, *, generation: str) -> tuple[Rewriting, ...]:
    """Replaces operations that the oldest compiler refuses by bit-identical forms, in place.

    Drivers have compilers of several releases; the newest accepts these forms too. Operations
    without an equal form stay. bfloat16 is replaced in the whole program, and is then rounded less
    often. Returns the replacements in the model's order.
    """
    done = [_widened(model, generation)] if computes_in_bfloat16(model) else []
    known = {str(node.get_name()) for node in model.get_ordered_ops()}
    for node in model.get_ordered_ops():
        rewriter = _REWRITERS.get(node.get_type_name())
        if rewriter is None:
            continue
        refusals = node_refusals(node, generation=generation, release=OLDEST)
        other = rewriter(node) if refusals else None
        if other is None:
            continue
        into = " and ".join(dict.fromkeys(_new_types(other, known)))
        refusal = refusals[0]
        done.append(Rewriting(refusal.operation, node.get_friendly_name(), into, refusal.source))
        put_in_place(node, other)
    return tuple(done)


def _widened(model: ov.Model, generation: str) -> Rewriting:
    refusals = (
        refusal
        for node in model.get_ordered_ops()
        for refusal in node_refusals(node, generation=generation, release=OLDEST)
        if refusal.rule == "operand types"
    )
    source = next((refusal.source for refusal in refusals), "")
    count = widen_bfloat16(model)
    return Rewriting(
        f"bfloat16 in {count} operations", model.get_friendly_name(), "float32", source
    )


def _is_nan(node: ov.Node) -> ov.Node | None:
    (value,) = _sources(node)
    return ops.not_equal(value, value)


def _is_finite(node: ov.Node) -> ov.Node | None:
    (value,) = _sources(node)
    return ops.less(ops.abs(value), _infinity(value))


def _is_inf(node: ov.Node) -> ov.Node | None:
    (value,) = _sources(node)
    asked = node.get_attributes()
    if asked["detect_negative"] and asked["detect_positive"]:
        return ops.equal(ops.abs(value), _infinity(value))
    if asked["detect_positive"]:
        return ops.equal(value, _infinity(value))
    return ops.equal(ops.negative(value), _infinity(value)) if asked["detect_negative"] else None


def _compared(node: ov.Node) -> ov.Node | None:
    """Compares narrow integers as int32."""
    left, right = _sources(node)
    if left.get_element_type().get_type_name() not in _NARROW:
        return None
    make = _COMPARISONS[str(node.get_type_name())]
    return make(*(ops.convert(side, ov.Type.i32).output(0) for side in (left, right)))


def _absolute(node: ov.Node) -> ov.Node | None:
    """Returns max(x, -x) of integers; the least integer stays unchanged, as in torch."""
    (value,) = _sources(node)
    kind = value.get_element_type()
    if kind.get_type_name() not in _WHOLE:
        return None
    return ops.maximum(value, ops.subtract(ops.constant(0, kind), value))


def _sign(node: ov.Node) -> ov.Node | None:
    """Returns (x > 0) - (x < 0)."""
    (value,) = _sources(node)
    kind = value.get_element_type()
    if kind.get_type_name() not in _WHOLE:
        return None
    zero = ops.constant(0, kind)
    return ops.subtract(
        ops.convert(ops.greater(value, zero), kind), ops.convert(ops.less(value, zero), kind)
    )


def _attention(node: ov.Node) -> ov.Node | None:
    """Converts a boolean mask of attention to 0 (visible) and -inf (hidden), for whole batches."""
    sources = _sources(node)
    if len(sources) < 4:
        return None
    kind = sources[0].get_element_type()
    if sources[3].get_element_type() == ov.Type.boolean:
        sources[3] = ops.select(
            sources[3], ops.constant(0.0, kind), ops.constant(-np.inf, kind)
        ).output(0)
    repeats = mask_repeats(node)
    if repeats is not None:
        shape = [1, 1, *(int(size) for size in sources[3].get_shape())][-4:]
        sources[3] = ops.tile(_to_shape(sources[3], shape), np.array(repeats, np.int64)).output(0)
    return NodeFactory("opset13").create(
        "ScaledDotProductAttention", sources, node.get_attributes()
    )


def _joined(node: ov.Node) -> ov.Node | None:
    """Multiplies pieces of a batch by numbers after concatenation, not before."""
    pieces = scaled_pieces(node)
    if pieces is None:
        return None
    axis, rank = int(node.get_attributes()["axis"]), len(node.get_output_shape(0))
    factors = [np.full(port.get_shape()[axis], factor) for port, factor in pieces]
    row = np.concatenate(factors).reshape(-1, *[1] * (rank - axis % rank - 1))
    joined = ops.concat([port for port, _ in pieces], axis)
    return ops.multiply(joined, ops.constant(row, node.get_output_element_type(0)))


def _select(node: ov.Node) -> ov.Node | None:
    """Replaces a choice of booleans by (c and a) or (not c and b), of narrow integers by int32.

    A choice of high rank is flattened to rank 1 if each side has one element or all.
    """
    condition, left, right = _sources(node)
    kind = left.get_element_type()
    if kind.get_type_name() in _NARROW - {"boolean"}:
        wide = (ops.convert(side, ov.Type.i32).output(0) for side in (left, right))
        return ops.convert(ops.select(condition, *wide), kind)
    if kind != ov.Type.boolean:
        return _chosen_in_one_dimension(node)
    if str(node.get_attributes()["auto_broadcast"]).lower() != "numpy":
        return None
    chosen = ops.logical_and(condition, left)
    return ops.logical_or(chosen, ops.logical_and(ops.logical_not(condition), right))


def _chosen_in_one_dimension(node: ov.Node) -> ov.Node | None:
    ports = [*_sources(node), node.output(0)]
    if any(port.get_partial_shape().is_dynamic for port in ports):
        return None
    *sides, whole = [[int(size) for size in port.get_shape()] for port in ports]
    if any(np.prod(side) not in (1, np.prod(whole)) for side in sides):
        return None
    return _to_shape(ops.select(*(_to_shape(port, [-1]) for port in ports[:-1])), whole)


def _reshaped(node: ov.Node) -> ov.Node | None:
    shape = node.get_output_partial_shape(0)
    if shape.is_dynamic:
        return None
    return _to_shape(_sources(node)[0], [int(size) for size in shape.to_shape()])


def _slice_scatter(node: ov.Node) -> ov.Node | None:
    """Writes along one axis after the other, the inner axes into slices of the outer ones."""
    data, updates, *rest = _sources(node)
    constants = [source.get_node() for source in rest]
    shape = data.get_partial_shape()
    if shape.is_dynamic or any(one.get_type_name() != "Constant" for one in constants):
        return None
    starts, stops, steps, *axes = ([int(value) for value in one.get_data()] for one in constants)
    sizes = [int(size) for size in shape.to_shape()]
    if is_empty(updates):
        return _to_shape(data, sizes)
    along = axes[0] if axes else list(range(len(starts)))
    places = [
        (axis % len(sizes), list(range(*slice(*part).indices(sizes[axis]))))
        for axis, *part in zip(along, starts, stops, steps, strict=True)
    ]
    return _written(data, updates, places)


def _written(
    data: ov.Output, updates: ov.Output, places: Sequence[tuple[int, list[int]]]
) -> ov.Node:
    (axis, indices), *rest = places
    at, along = ops.constant(np.array(indices, np.int64)), ops.constant(np.int64(axis))
    if rest:
        picked = ops.gather(data, at, along).output(0)
        updates = _written(picked, updates, rest).output(0)
    return opset3.scatter_update(data, at, updates, along)


# Integers that fit int32, for which the importer has comparisons and Select, unlike for these.
_NARROW = frozenset({"boolean", "i8", "i16", "u8", "u16"})
_WHOLE = frozenset({"i32", "i64"})
_COMPARISONS: Mapping[str, Callable[..., ov.Node]] = {
    "Equal": ops.equal,
    "Greater": ops.greater,
    "GreaterEqual": ops.greater_equal,
    "Less": ops.less,
    "LessEqual": ops.less_equal,
    "NotEqual": ops.not_equal,
}
_REWRITERS: Mapping[str, Callable[[ov.Node], ov.Node | None]] = {
    "Abs": _absolute,
    "Concat": _joined,
    "IsFinite": _is_finite,
    "IsInf": _is_inf,
    "IsNaN": _is_nan,
    "ScaledDotProductAttention": _attention,
    "Select": _select,
    "Sign": _sign,
    "SliceScatter": _slice_scatter,
    "Squeeze": _reshaped,
    "Unsqueeze": _reshaped,
    **dict.fromkeys(_COMPARISONS, _compared),
}


def _to_shape(value: ov.Output, shape: list[int]) -> ov.Node:
    return ops.reshape(value, ops.constant(np.array(shape, np.int64)), False)


def _infinity(value: ov.Output) -> ov.Node:
    return ops.constant(np.inf, value.get_element_type())


def _sources(node: ov.Node) -> list[ov.Output]:
    return list(node.input_values())


def _new_types(node: ov.Node, known: set[str]) -> list[str]:
    """Returns the types of the nodes that a rewrite created, last first."""
    if node.get_name() in known or node.get_type_name() == "Constant":
        return []
    known.add(node.get_name())
    below = [kind for source in _sources(node) for kind in _new_types(source.get_node(), known)]
    return [str(node.get_type_name()), *below]
