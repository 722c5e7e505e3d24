"""Reproduces OpenVINO's passes on an operation before the NPU's compiler imports it.

The wheel has these passes only in plugins, so their conditions and results are reproduced here.
Each row of "rewritten" in npu_rules.json has their source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset1 as opset1
import openvino.opset15 as ops
from openvino.utils.node_factory import NodeFactory

__all__ = ["is_replaced", "replacement"]

# Interpolation modes of version 4. Version 1 has the first four, with linear only for some ranks.
_MODES = ("nearest", "linear", "linear_onnx", "cubic")
_MOST_LINEAR_RANK = 5
# Query, key, value, mask and scale; a newer OpenVINO has another input.
_MOST_ATTENTION_INPUTS = 5


def is_replaced(kind: str, opset: str) -> bool:
    """Whether a pass replaces operations of this version, under some conditions."""
    return (kind, opset) in _REPLACEMENTS


def replacement(node: Any) -> list[ov.Node] | None:
    """Returns the operations by which a pass replaces one, last first.

    They have the operation's inputs and no readers. None if a condition of the pass fails, so that
    the operation stays.
    """
    info = node.get_type_info()
    results = _REPLACEMENTS[str(info.name), str(info.version_id)](node)
    if results is None:
        return None
    known = {source.get_node().get_name() for source in node.input_values()}
    return _made(results, known)


def _made(results: Sequence[Any], known: set[str]) -> list[ov.Node]:
    found: list[ov.Node] = []
    for result in results:
        if result.get_name() in known:
            continue
        known.add(result.get_name())
        if result.get_type_name() != "Constant":
            found.append(result)
            found += _made([source.get_node() for source in result.input_values()], known)
    return found


def _slice(node: Any) -> list[ov.Node] | None:
    """For constant axes; starts, stops and steps may vary."""
    data, *bounds = node.input_values()
    axes = _numbers(bounds.pop()) if len(bounds) > 3 else list(range(bounds[0].get_shape()[0]))
    if axes is None:
        return None
    rank = len(data.get_shape())
    axes = [axis % rank for axis in axes]
    length = max(axes) + 1
    mask = [0 if axis in axes else 1 for axis in range(length)]
    if axes != list(range(length)):
        bounds = [
            _aligned(bound, axes, length, fill)
            for bound, fill in zip(bounds, (0, 0, 1), strict=True)
        ]
    return [ops.strided_slice(data, *bounds, mask, mask)]


def _aligned(bound: ov.Output, axes: Sequence[int], length: int, fill: int) -> ov.Output:
    numbers = _numbers(bound)
    kind = bound.get_element_type()
    if numbers is not None:
        full = np.full(length, fill, np.int64)
        full[list(axes)] = numbers
        return ops.constant(full, kind).output(0)
    base = ops.constant(np.full(length, fill, np.int64), kind)
    made = ops.scatter_update(base, np.array(axes, np.int64), bound, np.array([0], np.int32))
    return made.output(0)


def _split(node: Any) -> list[ov.Node]:
    """Returns one strided slice per piece; constant sizes have a constant axis."""
    data, axis, _ = node.input_values()
    shape = list(data.get_shape())
    place = int(np.asarray(axis.get_node().get_data()).reshape(-1)[0]) % len(shape)
    mask = [0 if one == place else 1 for one in range(len(shape))]
    made, start = [], 0
    for piece in node.outputs():
        begin, end = np.zeros(len(shape), np.int64), np.array(piece.get_shape(), np.int64)
        begin[place], end[place] = start, start + end[place]
        start = int(end[place])
        made.append(ops.strided_slice(data, begin, end, np.ones_like(begin), mask, mask))
    return made


def _broadcast(node: Any) -> list[ov.Node] | None:
    """Returns a reshape and a tile; the mapped axes, if any, are constant."""
    data = node.input_value(0)
    wanted, shape = list(node.get_output_shape(0)), list(data.get_shape())
    explicit = node.get_attributes()["mode"] != "numpy"
    axes = _numbers(node.input_value(2)) if explicit else range(len(wanted))[-len(shape) :]
    if axes is None:
        return None
    full = [1] * len(wanted)
    for axis, size in zip(axes, shape, strict=True):
        full[axis] = size
    repeats = [new if old != new else 1 for old, new in zip(full, wanted, strict=True)]
    reshaped = ops.reshape(data, np.array(full, np.int64), True)
    return [ops.tile(reshaped, np.array(repeats, np.int64))]


def _attention(node: Any) -> list[ov.Node] | None:
    """Returns two products and a softmax, with constants for known sizes."""
    inputs = node.input_values()
    if len(inputs) > _MOST_ATTENTION_INPUTS:
        return None
    query, key, value, *rest = inputs
    kind = query.get_element_type()
    width = query.get_shape()[-1]
    scale = ops.constant(1 / np.sqrt(width), kind) if len(rest) < 2 else rest[1]
    rank = len(key.get_shape())
    turned = ops.transpose(key, np.array([*range(rank - 2), rank - 1, rank - 2], np.int64))
    scores = ops.matmul(ops.multiply(query, scale), turned, False, False)
    if node.get_attributes()["causal"]:
        hidden = np.triu(np.full(list(scores.get_output_shape(0))[-2:], -np.inf), 1)
        scores = ops.add(scores, ops.constant(hidden, kind))
    elif rest:
        scores = ops.add(scores, _mask(rest[0], scores))
    return [ops.matmul(ops.softmax(scores, -1), value, False, False)]


def _mask(mask: ov.Output, scores: ov.Node) -> ov.Node | ov.Output:
    """Returns the mask; booleans hide what they should show, which is a refusal."""
    if mask.get_element_type() != ov.Type.boolean:
        return mask
    kind = scores.get_output_element_type(0)
    kept, hidden = ops.convert(mask, kind), ops.constant(-np.inf, kind)
    return ops.select(ops.logical_not(mask), kept, hidden)


def _interpolation_1(node: Any) -> list[ov.Node] | None:
    attributes = node.get_attributes()
    mode, rank = attributes["mode"], len(node.get_input_shape(0))
    if mode not in _MODES or (mode == "linear" and rank > _MOST_LINEAR_RANK):
        return None
    axes = np.array(attributes["axes"], np.int64)
    scales = np.ones(axes.size, np.float32)
    data, sizes = node.input_values()
    words = {"mode": mode, "shape_calculation_mode": "sizes"}
    if mode == "linear" and rank < _MOST_LINEAR_RANK:
        words["mode"] = "linear_onnx"
    inputs = [data, sizes, *(ops.constant(one).output(0) for one in (scales, axes))]
    return [NodeFactory("opset4").create("Interpolate", inputs, words)]


def _interpolation_11(node: Any) -> list[ov.Node] | None:
    """For all modes except Pillow's; unused sizes or scales are ones."""
    attributes = node.get_attributes()
    if attributes["mode"] not in _MODES:
        return None
    data, given, *rest = node.input_values()
    by_scales = attributes["shape_calculation_mode"] == "scales"
    count = rest[0].get_shape()[0] if rest else len(data.get_shape())
    other = ops.constant(np.ones(count, np.int32 if by_scales else np.float32)).output(0)
    pair = (other, given) if by_scales else (given, other)
    inputs = [data, *pair, *rest]
    return [NodeFactory("opset4").create("Interpolate", inputs, attributes)]


def _boxes(node: Any) -> list[ov.Node]:
    """Converts version by version, to the compiler's, which has rank-1 thresholds."""
    boxes, scores, *rest = node.input_values()
    defaults = (np.int64(0), np.float32(0), np.float32(0))
    numbers = [*rest, *(ops.constant(one).output(0) for one in defaults[len(rest) :])]
    inputs = [boxes, scores, *(_row(one) for one in numbers)]
    return [NodeFactory("opset9").create("NonMaxSuppression", inputs, node.get_attributes())]


def _row(number: ov.Output) -> ov.Output:
    """Returns a number as rank-1 tensor, folded if constant."""
    values = _numbers(number)
    if values is None:
        return ops.reshape(number, np.array([1], np.int64), True).output(0)
    return ops.constant(np.array(values[:1]), number.get_element_type()).output(0)


def _deformed(node: Any) -> list[ov.Node] | None:
    """Without a mask and interpolated padding, returns the earlier version."""
    inputs, attributes = node.input_values(), node.get_attributes()
    if len(inputs) > 3 or attributes.pop("bilinear_interpolation_pad"):
        return None
    return [NodeFactory("opset1").create("DeformableConvolution", list(inputs), attributes)]


def _detected(node: Any) -> list[ov.Node]:
    """The number of classes follows from the scores per prior box."""
    attributes, inputs = node.get_attributes(), list(node.input_values())
    corners = 4 if attributes["normalized"] else 5
    priors = inputs[2].get_shape()[2] // corners
    attributes["num_classes"] = inputs[1].get_shape()[1] // priors
    return [NodeFactory("opset1").create("DetectionOutput", inputs, attributes)]


def _shape(node: Any) -> list[ov.Node]:
    return [ops.convert(opset1.shape_of(node.input_value(0)), node.get_output_element_type(0))]


def _sum_of_products(node: Any) -> list[ov.Node]:
    """Returns matrix products of two operands at a time; moves of axes have any type."""
    kinds = [source.get_element_type() for source in node.input_values()]
    blocks = [ops.parameter([1, 1], kind) for kind in kinds]
    made: ov.Node = ops.reduce_sum(blocks[0], np.array([0], np.int64))
    for block in blocks[1:]:
        made = ops.matmul(block, blocks[0], False, False)
    return [made]


_REPLACEMENTS: Mapping[tuple[str, str], Callable[[Any], list[ov.Node] | None]] = {
    ("Broadcast", "opset1"): _broadcast,
    ("DeformableConvolution", "opset8"): _deformed,
    ("DetectionOutput", "opset8"): _detected,
    ("Einsum", "opset7"): _sum_of_products,
    ("Interpolate", "opset1"): _interpolation_1,
    ("Interpolate", "opset11"): _interpolation_11,
    ("NonMaxSuppression", "opset1"): _boxes,
    ("NonMaxSuppression", "opset3"): _boxes,
    ("NonMaxSuppression", "opset4"): _boxes,
    ("NonMaxSuppression", "opset5"): _boxes,
    ("NonMaxSuppression", "opset9"): _boxes,
    ("ScaledDotProductAttention", "opset13"): _attention,
    ("ShapeOf", "opset3"): _shape,
    ("Slice", "opset8"): _slice,
    ("VariadicSplit", "opset1"): _split,
}


def _numbers(source: ov.Output) -> list[Any] | None:
    node = source.get_node()
    if node.get_type_name() != "Constant":
        return None
    return [value.item() for value in np.asarray(node.get_data()).reshape(-1)]
