"""Operations that the NPU's compiler does not take, replaced by equal ones that it does take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.rewriting import put_in_place
from npu_compiler.npu_rules.operations import node_refusals

__all__ = ["Rewriting", "rewrite_for_npu"]


@dataclass(frozen=True)
class Rewriting:
    """An operation that was replaced, since a rule refused it.

    Attributes:
        operation: type and version, such as "IsNaN (opset10)".
        node: the name that the operation has in the model.
        into: what stands in its place.
        source: file, line and commit of the rule.
    """

    operation: str
    node: str
    into: str
    source: str

    def __str__(self) -> str:
        return f"{self.operation} of {self.node}: {self.into} [{self.source}]"


def rewrite_for_npu(model: ov.Model, *, generation: str) -> tuple[Rewriting, ...]:
    """Replaces what the rules refuse where another form gives the same bits.

    Args:
        model: changed in place.
        generation: "3720" or "4000".

    Returns:
        What was replaced, in the model's order. What has no equal form stays.
    """
    done = []
    for node in model.get_ordered_ops():
        rewriter = _REWRITERS.get(node.get_type_name())
        if rewriter is None:
            continue
        refusals = node_refusals(node, generation=generation)
        other = rewriter(node) if refusals else None
        if other is None:
            continue
        into = " and ".join(dict.fromkeys(_new_types(other, set(map(_identity, _sources(node))))))
        refusal = refusals[0]
        done.append(
            Rewriting(refusal.operation, node.get_friendly_name(), into, refusal.source)
        )
        put_in_place(node, other)
    return tuple(done)


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


def _select(node: ov.Node) -> ov.Node | None:
    """A choice between booleans is (c and a) or (not c and b)."""
    condition, left, right = _sources(node)
    if not all(source.get_element_type() == ov.Type.boolean for source in (left, right)):
        return None
    if str(node.get_attributes()["auto_broadcast"]).lower() != "numpy":
        return None
    chosen = ops.logical_and(condition, left)
    return ops.logical_or(chosen, ops.logical_and(ops.logical_not(condition), right))


def _reshaped(node: ov.Node) -> ov.Node | None:
    shape = node.get_output_partial_shape(0)
    if shape.is_dynamic:
        return None
    return _to_shape(_sources(node)[0], [int(size) for size in shape.to_shape()])


def _col2im(node: ov.Node) -> ov.Node | None:
    """Blocks that do not overlap are put next to each other, which no arithmetic is needed for."""
    data, size, kernel = _sources(node)
    shape, asked = data.get_partial_shape(), node.get_attributes()
    constants = [source.get_node() for source in (size, kernel)]
    if shape.is_dynamic or any(one.get_type_name() != "Constant" for one in constants):
        return None
    (height, width), (down, across) = (tuple(map(int, one.get_data())) for one in constants)
    is_dense = list(asked["strides"]) == [down, across] and list(asked["dilations"]) == [1, 1]
    is_dense = is_dense and not any([*asked["pads_begin"], *asked["pads_end"]])
    if not is_dense or height % down or width % across:
        return None
    lead, channels = [int(each) for each in shape.to_shape()[:-2]], int(shape.to_shape()[-2])
    planes = int(np.prod(lead)) * channels // (down * across)
    blocks = _to_shape(data, [planes, down, across, height // down, width // across])
    order = ops.constant(np.array([0, 3, 1, 4, 2], np.int64))
    placed = ops.transpose(blocks, order)
    return _to_shape(placed.output(0), [*lead, channels // (down * across), height, width])


_REWRITERS: Mapping[str, Callable[[ov.Node], ov.Node | None]] = {
    "Col2Im": _col2im,
    "IsFinite": _is_finite,
    "IsInf": _is_inf,
    "IsNaN": _is_nan,
    "Select": _select,
    "Squeeze": _reshaped,
    "Unsqueeze": _reshaped,
}


def _to_shape(value: ov.Output, shape: list[int]) -> ov.Node:
    return ops.reshape(value, ops.constant(np.array(shape, np.int64)), False)


def _infinity(value: ov.Output) -> ov.Node:
    return ops.constant(np.inf, value.get_element_type())


def _sources(node: ov.Node) -> list[ov.Output]:
    return list(node.input_values())


def _identity(source: ov.Output) -> str:
    return str(source.get_node().get_name())


def _new_types(node: ov.Node, known: set[str]) -> list[str]:
    """The types of the nodes that a rewriting made, from the last to the first."""
    if node.get_name() in known or node.get_type_name() == "Constant":
        return []
    known.add(node.get_name())
    below = [kind for source in _sources(node) for kind in _new_types(source.get_node(), known)]
    return [str(node.get_type_name()), *below]
