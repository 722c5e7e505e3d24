"""Models of single operations, built from the configurations of tools/npu_lit.py."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
from openvino.utils.node_factory import NodeFactory

from npu_compiler.npu_rules.source_rules import SourceRules

__all__ = ["NotImported", "model_of"]

# OpenVINO's operation of a layer that several operations become.
_OPERATIONS = {
    "ScatterElementsUpdate": ("ScatterElementsUpdate", "opset12"), "TopK": ("TopK", "opset3"),
    "LSTMCell": ("LSTMCell", "opset4"), "NonMaxSuppression": ("NonMaxSuppression", "opset9"),
}  # fmt: skip
# OpenVINO's names of attributes; None for those expressed by another attribute or input.
_NAMES = {
    "autoPad": "auto_pad", "axisInd": "axis", "axis_attr": "axis",
    "biliniar_interpolate_pad": "bilinear_interpolation_pad", "dstElemType": "destination_type",
    "exclude_pads": "exclude-pad", "groups": None, "hiddenSize": "hidden_size",
    "indices_rank": None, "kernel_size": "kernel", "mergeRepeated": "merge_repeated",
    "name": "variable_id", "output_padding": "output_padding", "outputType": "output_type",
    "output_shape": None, "seq_length": None, "sequenceLength": None, "x": "alpha",
    "should_linear_before_reset": "linear_before_reset", "element_type": "index_element_type",
    "per_axis": None, "inFmt": None, "outFmt": None, "attr": None,
}  # fmt: skip
_OF_LAYERS = {
    ("BatchNormInference", "eps"): "epsilon", ("OneHot", "outputType"): None,
    ("CTCGreedyDecoder", "mergeRepeated"): "ctc_merge_repeated", ("Pad", "mode"): "pad_mode",
    ("MaxPool", "exclude_pads"): None,
}  # fmt: skip
# Words that mean true by being present.
_FLAGS = {
    "MatMul": ("transpose_a", "transpose_b"), "CumSum": ("exclusive", "reverse"),
    "AvgPool": ("exclude-pad",), "Bucketize": ("with_right_bound",), "Inverse": ("adjoint",),
    "GridSample": ("align_corners",), "CTCGreedyDecoder": ("ctc_merge_repeated",),
    "CTCGreedyDecoderSeqLen": ("merge_repeated",), "MVN": ("across_channels", "normalize_variance"),
    "MVN6": ("normalize_variance",), "GRUCell": ("linear_before_reset",),
    "GRUSequence": ("linear_before_reset",),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogicalAnd", "ReduceLogicalOr", "ReduceMax",
                     "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), ("keep_dims",)),
}  # fmt: skip
_WORDS = {"NONE_OR_EXPLICIT": "none", "SORT_INDICES": "index", "SORT_VALUES": "value"}
# Scalar inputs of OpenVINO's operations, by position.
_SCALARS = {
    "EmbeddingBagOffsetsSum": (3,), "EmbeddingSegmentsSum": (3, 4), "GatherTree": (3,),
    "Split": (1,), "TopK": (1,),
}  # fmt: skip
# Inputs that are attributes of a layer, with their names.
_INSTEAD = {
    "pooled_spatial_shape": "pooled_spatial_shape", "alpha": "alphaValue", "lambda": "lambdaValue",
}  # fmt: skip
_LARGEST_HALF = 65504
# Inputs with the element type of the data.
_OF_DATA = frozenset({
    "pad_value", "beta", "alpha", "lambda", "gamma", "mean", "variance", "per_sample_weights",
})  # fmt: skip


class NotImported(ValueError):
    """An operation that the importer does not create."""


def model_of(row: Mapping[str, Any], rules: SourceRules) -> ov.Model:
    """Returns a model of the operation that the importer converts to this layer.

    Args:
        row: one of tools/npu_lit.py's configurations.
        rules: rules of the importer.

    Raises:
        NotImported: a later pass creates it, or OpenVINO has no such operation.
    """
    made = _Made(row, rules)
    try:
        node = made.node()
    except RuntimeError as error:
        reason = next(line for line in reversed(str(error).splitlines()) if line.strip())
        raise NotImported(f"OpenVINO refuses it: {reason.strip()}") from error
    return ov.Model(node.outputs(), made.parameters, row["layer"])


class _Made:
    def __init__(self, row: Mapping[str, Any], rules: SourceRules) -> None:
        self.parameters: list[ov.Node] = []
        self._layer = row["layer"]
        self._given: Mapping[str, Any] = row["attributes"]
        self._operands = [_operand(text) for text in row["operands"]]
        operands = rules.layer(self._layer)["operands"]
        self._names = [one["name"] for one in operands]
        self._ranks = [one["ranks"] for one in operands]
        self._taken = self._operation(rules)

    def node(self) -> Any:
        """Creates the operation with its inputs."""
        other = _OTHERWISE.get(self._layer)
        inputs = other(self) if other else self._inputs()
        attributes = self._attributes()
        kind, opset = self._taken["type"], self._taken["opset"]
        if opset == "ie_internal_opset":
            raise NotImported("only a pass of OpenVINO makes it")
        if kind == "LSTMCell" and len(inputs) < 6:
            raise NotImported("a later pass takes an operand away")
        node = NodeFactory(opset).create(kind, [one.output(0) for one in inputs], attributes)
        unknown = attributes.keys() - node.get_attributes().keys()
        if unknown:
            raise NotImported(f"{kind} has no {', '.join(sorted(unknown))}")
        return node

    def value(self, name: str) -> Any:
        """A layer's attribute, or None."""
        return self._given.get(name)

    def operand(self, position: int) -> ov.Node:
        """Returns the operand at a position, as an input or a constant."""
        one = self._operands[position]
        if one is None:
            raise NotImported(f"operand {position} is missing")
        kind, shape, numbers = one
        if shape == [1] and position in _SCALARS.get(self._layer, ()):
            shape = []
        if numbers is None:
            made = ops.parameter(shape, getattr(ov.Type, kind))
            self.parameters.append(made)
            return made
        return constant(numbers, kind, shape)

    def kind(self, position: int = 0) -> str:
        """Returns the element type of an operand."""
        one = self._operands[position]
        return one[0] if one else "i64"

    def shape(self, position: int = 0) -> list[int]:
        """Returns the sizes of an operand."""
        one = self._operands[position]
        return one[1] if one else []

    def count(self) -> int:
        """Returns the number of operands."""
        return sum(one is not None for one in self._operands)

    def _operation(self, rules: SourceRules) -> Mapping[str, Any]:
        rows = [row for row in rules.content["operations"] if row["layer"] == self._layer]
        wanted = _OPERATIONS.get(self._layer)
        if self._layer == "YuvToRgb":
            wanted = (f"{self._given['inFmt']}to{self._given['outFmt']}", "opset8")
        if wanted is None:
            return rows[0]
        return next(row for row in rows if (row["type"], row["opset"]) == wanted)

    def _inputs(self) -> list[ov.Node]:
        positions = self._taken["inputs"] or {str(index): index for index in range(self.count())}
        if self._names and self.count() > len(positions):
            raise NotImported("a later pass adds an operand")
        found = []
        for index in sorted(positions, key=int):
            made = self._input(positions[index])
            if made is None:
                break
            found.append(made)
        return found

    def _input(self, position: int) -> ov.Node | None:
        if position < len(self._operands) and self._operands[position] is not None:
            return self.operand(position)
        name = self._names[position]
        words = (f"{name}_value", f"{name}_attr", f"{name}_values", f"{name}Value",
                 _INSTEAD.get(name, ""))  # fmt: skip
        for word in words:
            if word in self._given:
                value = self._given[word]
                many = value if isinstance(value, list) else [value]
                is_row = isinstance(value, list) or self._ranks[position] == [1]
                shape = [len(many)] if is_row else []
                kind = self.kind() if name in _OF_DATA else self._kind_of(many)
                return constant(many, kind, shape)
        return None

    def _kind_of(self, numbers: Sequence[Any]) -> str:
        """Returns the element type of an attribute as an input: all indices have the same."""
        if any(isinstance(number, float) for number in numbers):
            return "f32"
        is_index = self.count() > 1 and self.kind(1) in ("i32", "i64")
        return self.kind(1) if is_index else "i64"

    def _attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(_FLAGS.get(self._layer, ()), False)
        for name, value in self._given.items():
            known = _OF_LAYERS.get((self._layer, name), _NAMES.get(name, name))
            is_input = re.search(r"_(value|values|attr)$|Value$", name) and name != "axis_attr"
            if known is not None and not is_input:
                found[known] = _spoken(value)
        if self._layer in ("OneHot",):
            found["axis"] = self._given["axis_attr"]
        found.update(_ADDED.get(self._layer, lambda _: {})(self))
        return found


def constant(numbers: Sequence[Any], kind: str, shape: Sequence[int]) -> ov.Node:
    """Creates a constant of one number or of all; of ones if the numbers are unknown."""
    values = np.array(numbers or [1], np.float64)
    if kind == "f16":
        values = np.clip(values, -_LARGEST_HALF, _LARGEST_HALF)
    size = int(np.prod(shape, dtype=np.int64))
    full = values.reshape(shape) if values.size == size else np.full(shape, values[0])
    made: ov.Node = ops.constant(full, getattr(ov.Type, kind))
    return made


def _operand(text: str) -> tuple[str, list[int], list[Any] | None] | None:
    """Parses the element type, the sizes, and a constant's numbers."""
    found = re.fullmatch(r"(\w+)\[([\d, ]*)\](?: = (.*))?", text)
    if found is None:
        return None
    shape = [int(word) for word in found[2].split(",") if word.strip()]
    if found[3] is None:
        return found[1], shape, None
    numbers = [] if found[3] == "..." else [float(word) for word in found[3].split(",")]
    return found[1], shape, numbers


def _spoken(value: Any) -> Any:
    if isinstance(value, str):
        return value if hasattr(ov.Type, value) else _WORDS.get(value, value.lower())
    return value


def _concat(made: _Made) -> list[ov.Node]:
    return [made.operand(index) for index in range(made.count())]


def _concat_axis(made: _Made) -> dict[str, Any]:
    along = made.value("per_axis")
    if along.get("offset", 1) != 1 or along.get("stride", 1) != 1:
        raise NotImported("pieces that are joined with gaps")
    return {"axis": along["axis"]}


def _grouped(made: _Made) -> list[ov.Node]:
    if made.count() > 2:
        raise NotImported("a later pass adds an operand")
    data, weights = made.operand(0), made.operand(1)
    shape, groups = made.shape(1), made.value("groups")
    if groups is None:
        return [data, weights]
    split = [groups, shape[0] // groups, *shape[1:]]
    if weights.get_type_name() == "Constant":
        return [data, constant([1], made.kind(1), split)]
    other = ops.parameter(split, getattr(ov.Type, made.kind(1)))
    made.parameters[-1] = other
    return [data, other]


def _random(made: _Made) -> list[ov.Node]:
    return [constant(made.value("output_shape"), "i64", [len(made.value("output_shape"))]),
            made.operand(0), made.operand(1)]  # fmt: skip


def _interpolated(made: _Made) -> list[ov.Node]:
    """Adds sizes, scales and axes as inputs; those that the mode does not read are ones."""
    axes = made.value("axes_attr")
    if made.count() > 2:
        return [made.operand(index) for index in range(made.count())]
    count = made.shape(1)[0] if made.count() == 2 else len(axes)
    sizes, scales = made.value("sizes_attr"), made.value("scales_attr")
    return [
        made.operand(0),
        made.operand(1) if made.count() == 2 else constant(sizes or [1], "i64", [count]),
        constant(scales or [1.0], "f32", [count]),
        *([constant(axes, "i64", [count])] if axes else []),
    ]


def _interpolation(made: _Made) -> dict[str, Any]:
    given = made.value("attr")
    names = {"mode": "mode", "shape_calc_mode": "shape_calculation_mode",
             "coord_mode": "coordinate_transformation_mode", "nearest_mode": "nearest_mode",
             "antialias": "antialias", "pads_begin": "pads_begin", "pads_end": "pads_end",
             "cube_coeff": "cube_coeff"}  # fmt: skip
    return {names[name]: _spoken(value) for name, value in given.items()}


def _one_hot(made: _Made) -> list[ov.Node]:
    kind = made.value("outputType")
    return [
        made.operand(0), constant([made.value("depth_attr")], "i64", []),
        constant([made.value("on_value_attr")], kind, []),
        constant([made.value("off_value_attr")], kind, []),
    ]  # fmt: skip


def _sequence(made: _Made) -> list[ov.Node]:
    """Adds the lengths: an attribute of the layer, an input before the weights in OpenVINO."""
    length = made.value("sequenceLength") or made.value("seq_length")
    states = 2 if made.count() == 6 else 1
    batch = made.shape(0)[0]
    first = [made.operand(index) for index in range(1 + states)]
    rest = [made.operand(index) for index in range(1 + states, made.count())]
    return [*first, constant([length], "i64", [batch]), *rest]


def _sequence_words(made: _Made) -> dict[str, Any]:
    """Returns attributes that the layer lacks: the importer accepts only these activations."""
    activations = ["sigmoid", "tanh"] + ["tanh"] * (made.count() == 6)
    return {"hidden_size": made.shape(1)[-1], "activations": activations}


def _colors(made: _Made) -> list[ov.Node]:
    return [made.operand(index) for index in range(made.count())]


_OTHERWISE = {
    "Concat": _concat, "GroupConvolution": _grouped, "RandomUniform": _random,
    "Interpolate": _interpolated, "OneHot": _one_hot, "LSTMSequence": _sequence,
    "GRUSequence": _sequence, "YuvToRgb": _colors,
}  # fmt: skip
_ADDED = {
    "Concat": _concat_axis, "Interpolate": _interpolation, "LSTMSequence": _sequence_words,
    "GRUSequence": _sequence_words,
}  # fmt: skip
