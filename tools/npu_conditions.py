"""Conditions on single operations in the NPU compiler's source, with their locations.

Each row has a pattern that finds the condition in a file. If a newer source lacks the pattern, the
condition is left out of the data, and tools/npu_rules.py reports it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

__all__ = ["CONDITIONS", "conditions"]

_OPS = "src/vpux_compiler/src/dialect/IE/IR/ops"
_PASSES = "src/vpux_compiler/src/dialect/IE/transforms/passes"
_IMPORTER = "src/vpux_compiler/src/frontend/IE.cpp"
_RANKS = "src/vpux_compiler/include/vpux/compiler/core/attributes/dim.hpp"
_TRANSFORMS = "src/vpux_compiler/include/vpux/compiler/dialect/IE/utils/fft_ops_utils.hpp"
_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogicalAnd", "ReduceLogicalOr", "ReduceMax",
               "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")  # fmt: skip
_HALVES_AND_BYTES = ["f16", "f32", "u8"]


class Source(Protocol):
    """A checkout of the compiler."""

    files: list[str]

    def text(self, path: str) -> str:
        """A file's text."""


def _constant(kinds: Iterable[str], inputs: Iterable[int], path: str, pattern: str) -> Any:
    for index in inputs:
        yield tuple(kinds), "", path, pattern, {"input": index, "constant": True}


def _recurrent(kind: str, states: int, activations: list[str]) -> Any:
    """No clipping, the usual activations, and equal constant lengths."""
    head = rf"ov::opset\d+::{kind}>& origNode\)"
    near = r"(?:(?!NGraphImporter::parseNode).)*?"
    clip, acts = "get_clip\\(\\) == 0", "get_activations\\(\\) =="
    at = lambda text: rf"(?s){head}{near}{text}"  # noqa: E731
    yield (kind,), "", _IMPORTER, at(clip), {"attribute": "clip", "values": [0.0]}
    given = {"attribute": "activations", "values": [activations]}
    yield (kind,), "", _IMPORTER, at(acts), given
    if kind.endswith("Sequence"):
        yield (kind,), "", _IMPORTER, at("seqLenConstant != nullptr"), {
            "input": 1 + states, "constant": True,
        }  # fmt: skip
        yield (kind,), "", _IMPORTER, at("isAllLensSame,"), {"input": 1 + states, "alike": True}


# Types of operations, "" or the only version it applies to, its location, and its conditions: for
# an input, being constant, having equal numbers, ranks or element types; for an attribute, its
# values; the number of inputs.
CONDITIONS: tuple[tuple[tuple[str, ...], str, str, str, Mapping[str, Any]], ...] = (
    ((), "", _RANKS, r"MAX_NUM_DIMS = 15;", {"most_dimensions": 15}),
    *_constant(["AdaptiveAvgPool"], [1], f"{_OPS}/adaptive_avg_pool.cpp", "constInputToData"),
    *_constant(["AdaptiveMaxPool"], [1], f"{_OPS}/adaptive_max_pool.cpp", "constInputToData"),
    *_constant(["OneHot"], [1], f"{_OPS}/onehot.cpp", "Only constant input is supported"),
    *_constant(["TopK"], [1], f"{_OPS}/topk.cpp", r"getConstOrAttrValue\(topK\."),
    *_constant(["BatchToSpace"], [1, 2, 3], f"{_OPS}/batch_to_space.cpp", "getConstOrArrAttr"),
    *_constant(["SpaceToBatch"], [1, 2, 3], f"{_OPS}/space_to_batch.cpp", "getConstOrArrAttr"),
    *_constant(["NormalizeL2"], [1], f"{_OPS}/normalize_l2.cpp", "getConstOrArrAttrValue"),
    *_constant(["Eye"], [0, 1, 3], f"{_OPS}/eye.cpp", r"getConstOr(?:Arr)?AttrValue"),
    *_constant(["DFT", "IDFT", "IRDFT", "RDFT"], [1], _TRANSFORMS, "supported for axes"),
    *_constant(["DFT", "IDFT", "IRDFT", "RDFT"], [2], _TRANSFORMS, "supported for signal_size"),
    *_constant(["Unsqueeze"], [1], f"{_OPS}/unsqueeze.cpp", r"IE::getAxes\(unsqueeze"),
    *_constant(_REDUCTIONS, [1], "src/vpux_compiler/src/dialect/IE/utils/reduce_infer.cpp",
               "std::find\\(axes"),
    *_constant(["ConvolutionBackpropData"], [2], f"{_OPS}/convolution_backprop_data.cpp",
               "Only constant input is supported for output_shape"),
    *_constant(["Roll"], [2], f"{_OPS}/roll.cpp", r"constInputToData\(loc, roll\.getAxes"),
    *_constant(["ScatterUpdate"], [3], f"{_OPS}/scatter_update.cpp", "Only support constant axis"),
    *_constant(["RandomUniform"], [0], _IMPORTER, "must have Constant shape input"),
    *_constant(["Loop"], [0], f"{_OPS}/loop.cpp", "Non-const trip_count is unsupported"),
    *_recurrent("LSTMCell", 2, ["sigmoid", "tanh", "tanh"]),
    *_recurrent("LSTMSequence", 2, ["sigmoid", "tanh", "tanh"]),
    *_recurrent("GRUCell", 1, ["sigmoid", "tanh"]),
    *_recurrent("GRUSequence", 1, ["sigmoid", "tanh"]),
    (("GRUSequence",), "", _IMPORTER, "supports direction 'FORWARD' and 'REVERSE'",
     {"attribute": "direction", "values": ["forward", "reverse"]}),
    (("Bucketize",), "", _IMPORTER, "should have only SI32 type",
     {"attribute": "output_type", "values": ["i32"]}),
    (("DeformableConvolution",), "opset8", f"{_OPS}/deformable_convolution.cpp",
     "without input mask is not supported", {"inputs": [4]}),
    (("DeformableConvolution",), "opset8", f"{_OPS}/deformable_convolution.cpp",
     "Group attribute should have", {"attribute": "group", "values": [1]}),
    (("DeformableConvolution",), "opset8", f"{_OPS}/deformable_convolution.cpp",
     "DeformableGroup attribute should have", {"attribute": "deformable_group", "values": [1]}),
    (("GroupConvolutionBackpropData",), "", f"{_OPS}/group_convolution_backprop_data.cpp",
     "Explicit output shape is not implemented", {"inputs": [2]}),
    (("DepthToSpace",), "", f"{_OPS}/depth_to_space.cpp", "only support FP16, FP32, U8",
     {"input": 0, "types": _HALVES_AND_BYTES}),
    (("SpaceToDepth",), "", f"{_OPS}/space_to_depth.cpp", "only supports FP16, FP32, U8",
     {"input": 0, "types": _HALVES_AND_BYTES}),
    (("ReverseSequence",), "", f"{_OPS}/reverse_sequence.cpp", "only support FP16, FP32, U8",
     {"input": 0, "types": _HALVES_AND_BYTES}),
    (("MVN",), "opset2", f"{_OPS}/mvn.cpp", "should have 4 or 5 dimensions",
     {"input": 0, "ranks": [4, 5]}),
    (("SpaceToBatch",), "", f"{_OPS}/space_to_batch.cpp", "rank only support 3, 4 or 5",
     {"input": 0, "ranks": [3, 4, 5]}),
    (("Interpolate",), "opset4", f"{_PASSES}/convert_shape_to_4d.cpp",
     "Tensors with rank > 4 are not supported", {"input": 0, "ranks": [1, 2, 3, 4]}),
    (("ConvolutionBackpropData", "GroupConvolutionBackpropData"), "",
     f"{_PASSES}/convert_transposedconv_to_conv.cpp",
     r"featureShape\.size\(\) == 4", {"input": 0, "ranks": [3, 4]}),
    (("DepthToSpace",), "", f"{_PASSES}/convert_depth2space.cpp", "Input shape must be 4d \\(",
     {"input": 0, "ranks": [4]}),
)  # fmt: skip


def conditions(source: Source) -> list[dict[str, Any]]:
    """Returns the conditions in a checkout, each with file and line."""
    found = []
    for kinds, opset, path, pattern, asked in CONDITIONS:
        text = source.text(path) if path in source.files else ""
        place = re.search(pattern, text)
        if place is not None:
            line = text.count("\n", 0, place.end()) + 1
            row = {"operations": list(kinds), "opset": opset, **asked, "file": path, "line": line}
            found.append(row)
    return found
