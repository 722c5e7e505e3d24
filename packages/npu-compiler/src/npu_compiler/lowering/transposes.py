"""Moves transposes of images in `channels_last` past elementwise operations, reductions and slices.

The CPU plugin merges a transpose with the layout of a convolution next to it. Any other transpose
copies the image. Elementwise operations get images as (batch, places, channels), because the plugin
would choose a format with a copy for an image of four axes.
"""

from __future__ import annotations

import operator

import openvino as ov
import openvino.opset15 as ops

__all__ = ["sink_transposes"]

_TO_TORCH, _TO_MEMORY = [0, 3, 1, 2], [0, 2, 3, 1]
_ELEMENTWISE = frozenset(
  {
    "Abs", "Add", "Clamp", "Convert", "Divide", "Elu", "Equal", "Erf", "Exp", "Gelu", "Greater",
    "GreaterEqual", "HSwish", "Less", "LessEqual", "Log", "LogicalAnd", "LogicalNot", "LogicalOr",
    "Maximum", "Minimum", "Multiply", "Negative", "NotEqual", "Power", "Relu", "Select", "Sigmoid",
    "Sqrt", "Subtract", "Swish", "Tanh",
  }
)  # fmt: skip
# Operation -> position of its axes among the inputs.
_BY_AXES = {"ReduceMax": 1, "ReduceMean": 1, "ReduceMin": 1, "ReduceSum": 1, "Slice": 4}


def sink_transposes(model: ov.Model) -> None:
    """Lets operations on transposed images compute in the order of the images' memory, in place.

    Images of dynamic sizes keep their transposes.
    """
    nodes = model.get_ordered_ops()
    if any(_is_transpose(node, _TO_TORCH) for node in nodes):
        sinking = _Sinking()
        for node in nodes:
            sinking.visit(node)
        model.validate_nodes_and_infer_types()


class _Sinking:
    def __init__(self) -> None:
        # Name of a transpose to torch's axes -> its input, (batch, height, width, channels).
        self._sources: dict[str, ov.Output] = {}

    def visit(self, node: ov.Node) -> None:
        """Moves the transposes in front of a node behind it."""
        if not _is_static_image(node.output(0)) and _kind(node) not in _BY_AXES:
            return
        source = self._source(node.input_value(0)) if node.get_input_size() else None
        if _is_transpose(node, _TO_TORCH):
            self._sources[node.get_name()] = node.input_value(0)
        elif _is_transpose(node, _TO_MEMORY) and source is not None:
            for reader in node.output(0).get_target_inputs():
                # The plugin writes nothing to a result that is an input.
                if {"Parameter", "Result"} != {_kind(source.get_node()), _kind(reader.get_node())}:
                    reader.replace_source_output(source)
        elif _kind(node) in _ELEMENTWISE:
            self._sink(node)
        elif _kind(node) in _BY_AXES and source is not None:
            self._sink_by_axes(node, source)

    def _source(self, value: ov.Output) -> ov.Output | None:
        return self._sources.get(value.get_node().get_name())

    def _sink(self, node: ov.Node) -> None:
        batch, channels, height, width = shape = list(node.get_output_shape(0))
        values = node.input_values()
        # An image of the result's shape; a smaller operand would not save the copy of an image.
        if not any(self._source(one) and list(one.get_shape()) == shape for one in values):
            return
        if not all(_can_be_rows(one, height, width) for one in values):
            return
        node.set_arguments([self._as_rows(_unrepeated(one) or one) for one in values])
        node.validate_and_infer_types()
        readers = node.output(0).get_target_inputs()
        image = _reshape(node.output(0), [batch, height, width, channels])
        self._turn_back(image, readers)

    def _as_rows(self, value: ov.Output) -> ov.Output:
        """Returns (batch, places, channels) of an operand."""
        if value.get_partial_shape().rank == 0:
            return value
        batch, channels, height, width = ([1] * 4 + list(value.get_shape()))[-4:]
        source = self._source(value)
        if source is None and height * width > 1:
            image = _reshape(value, [batch, channels, height, width])
            source = ops.transpose(image, ops.constant(_TO_MEMORY, ov.Type.i64)).output(0)
        return _reshape(source or value, [batch, height * width, channels])

    def _sink_by_axes(self, node: ov.Node, source: ov.Output) -> None:
        place = _BY_AXES[_kind(node)]
        axes = _constant(node.input_value(place)) if place < node.get_input_size() else None
        if axes is None:
            return
        axes = [axis % 4 for axis in axes]
        is_image = bool(node.get_attributes().get("keep_dims", True))
        left = [axis for axis in _TO_MEMORY if axis not in axes]
        if not is_image and left != sorted(left):
            return
        values = [source, *node.input_values()[1:]]
        moved = [_TO_MEMORY.index(axis) for axis in axes]
        values[place] = ops.constant(moved, ov.Type.i64).output(0)
        node.set_arguments(values)
        node.validate_and_infer_types()
        if is_image:
            self._turn_back(node.output(0), node.output(0).get_target_inputs())

    def _turn_back(self, image: ov.Output, readers: set[ov.Input]) -> None:
        turned = ops.transpose(image, ops.constant(_TO_TORCH, ov.Type.i64)).output(0)
        for reader in readers:
            reader.replace_source_output(turned)
        self._sources[turned.get_node().get_name()] = image


def _kind(node: ov.Node) -> str:
    return str(node.get_type_name())


def _is_transpose(node: ov.Node, order: list[int]) -> bool:
    return _kind(node) == "Transpose" and _constant(node.input_value(1)) == order


def _constant(value: ov.Output) -> list[int] | None:
    node = value.get_node()
    return node.get_data().flatten().tolist() if _kind(node) == "Constant" else None


def _is_static_image(value: ov.Output) -> bool:
    return value.get_partial_shape().is_static and len(value.get_shape()) == 4


def _unrepeated(value: ov.Output) -> ov.Output | None:
    """Returns an operand of one place that was repeated over all places, or None.

    A function of such an operand and scalars is computed for the one place.
    """
    node = value.get_node()
    if _kind(node) not in _ELEMENTWISE or len(value.get_target_inputs()) > 1:
        return _broadcast_place(value)
    places = [_broadcast_place(one) for one in node.input_values()]
    scalars = [one.get_partial_shape().rank == 0 for one in node.input_values()]
    if not any(places) or not all(map(operator.or_, map(bool, places), scalars)):
        return None
    node.set_arguments([a or b for a, b in zip(places, node.input_values(), strict=True)])
    node.validate_and_infer_types()
    return value


def _broadcast_place(value: ov.Output) -> ov.Output | None:
    """Returns the (batch, channels, 1, 1) of which a Broadcast made an image, or None."""
    node, shape = value.get_node(), value.get_partial_shape()
    if _kind(node) != "Broadcast" or shape.is_dynamic:
        return None
    source = node.input_value(0)
    is_place = source.get_partial_shape() == ov.PartialShape([*shape.to_shape()[:2], 1, 1])
    return source if is_place else None


def _can_be_rows(value: ov.Output, height: int, width: int) -> bool:
    """Whether height and width of an operand are one axis: both whole, or both repeated."""
    shape = value.get_partial_shape()
    if shape.is_dynamic:
        return False
    places = [1, 1, *shape.to_shape()][-2:]
    return places in ([height, width], [1, 1])


def _reshape(value: ov.Output, shape: list[int]) -> ov.Output:
    return ops.reshape(value, ops.constant(shape, ov.Type.i64), False).output(0)
