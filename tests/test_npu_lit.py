"""The NPU compiler's tests of its passes, as models: accepted by the rules, refused mutated."""

import collections
import json
import re
from pathlib import Path

import openvino.opset15 as ops
import pytest

import npu_lit
import npu_lit_models
from npu_compiler.npu_rules.operations import node_refusals
from npu_compiler.npu_rules.source_rules import GENERATIONS, source_rules

ROWS = json.loads((Path(__file__).parent / "npu_lit.json").read_text())

TEXT = """
// CHECK: IE.Relu(%1)
#CN = affine_map<(d0, d1) -> (d1, d0)>
func.func @A(%arg0: tensor<2x3xf16>) -> tensor<3x2xf16> {
    %cst = const.Declare tensor<2xsi64> = dense<[1, 0]> : tensor<2xsi64>
    %0 = IE.Turn(%arg0, %cst) {mode = #IE.mode<FAST>, sizes = [1, -2], keep} :
        tensor<2x3xf16>, tensor<2xsi64> -> tensor<3x2xf16>
    %1 = IE.Turn(%0) {order = #CN, operandSegmentSizes = array<i32: 1, 0>, attr = #IE.T<a = <B>>}
        : tensor<3x2xf16> -> tensor<3x2xf16>
    // same kind as the first, with other sizes
    %2 = IE.Turn(%arg1, %cst) {mode = #IE.mode<FAST>, sizes = [4, 5], keep} :
        tensor<7x9xf16>, tensor<2xsi64> -> tensor<3x2xf16>
}
func.func @B(%arg0: tensor<2x3xf16>) {
    %0 = IE.Turn(%arg0, %cst) {keep} : tensor<2x3xf16>, tensor<2xsi64> -> tensor<3x2xf16>
    %1 = IE.Turn(%arg0) {post_op = 1} : tensor<2x3xf16> -> tensor<3x2xf16>
    %2 = IE.Turn(%arg0) : tensor<2x3xf16, {order = #CN}> -> tensor<3x2xf16>
    %3 = IE.Turn(%arg0) : tensor<2x3x!qElemType> -> tensor<3x2xf16>
    %4 = IE.Else(%arg0) : tensor<2x3xf16> -> tensor<3x2xf16>
}
// -----
func.func @C() {
    // expected-error@+1 {{not so}}
    %0 = IE.Turn(%arg0) : tensor<5xf16> -> tensor<5xf16>
}
"""

# Why an operation of these tests is none that OpenVINO has and the importer takes: what later
# passes make of it, or a form that only the compiler's own dialect has.
NOT_IMPORTED = {
    "OpenVINO refuses it": 24,
    "a later pass adds an operand": 8,
    "a later pass takes an operand away": 1,
    "operand 3 is missing": 1,
    "pieces that are joined with gaps": 3,
    "only a pass of OpenVINO makes it": 1,
    "MatMul has no dilations, pads_begin, pads_end, strides": 1,
}

# Layers with data of any type, by the source.
UNTYPED = {
    "BatchToSpace", "Broadcast", "Bucketize", "Clamp", "Concat", "Convert", "ConvertLike",
    "ConvolutionBackpropData", "CumSum", "DeformablePSROIPooling", "EmbeddingBagOffsetsSum",
    "ExtractImagePatches", "Eye", "Gather",
    "GatherElements", "GridSample", "GroupConvolutionBackpropData", "MVN", "MVN6", "Maximum",
    "Minimum", "NormalizeL2", "OneHot", "Pad", "ReadValue", "ReduceL1", "ReduceL2", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Roll",
    "ScatterElementsUpdate", "ScatterNDUpdate", "ScatterUpdate", "SpaceToBatch",
    "Split", "Squeeze", "StridedSlice", "Tile", "TopK", "Transpose", "Unsqueeze",
}  # fmt: skip
# Inputs that the compiler reads while it compiles.
CONSTANT = {
    ("AdaptiveAvgPool", 1), ("AdaptiveMaxPool", 1), ("BatchToSpace", 1), ("BatchToSpace", 2),
    ("BatchToSpace", 3), ("Broadcast", 1), ("DFT", 1), ("DFT", 2), ("EmbeddingSegmentsSum", 3),
    ("Eye", 0), ("Eye", 1), ("Eye", 3), ("GRUSequence", 2), ("Gather", 2), ("IDFT", 1),
    ("IDFT", 2), ("IRDFT", 1), ("IRDFT", 2), ("LSTMSequence", 3), ("MVN6", 1), ("NormalizeL2", 1),
    ("OneHot", 1), ("Pad", 3), ("RDFT", 1), ("RDFT", 2), ("RandomUniform", 0), ("ReduceL1", 1),
    ("ReduceL2", 1), ("ReduceMax", 1), ("ReduceMean", 1), ("ReduceMin", 1), ("ReduceProd", 1),
    ("ReduceSum", 1), ("Reshape", 1), ("Roll", 1), ("Roll", 2), ("ScatterUpdate", 3),
    ("SpaceToBatch", 1), ("SpaceToBatch", 2), ("SpaceToBatch", 3), ("Split", 1), ("Squeeze", 1),
    ("Tile", 1), ("TopK", 1), ("Transpose", 1), ("Unsqueeze", 1),
}  # fmt: skip


@pytest.fixture(scope="module")
def made():
    """Models by row; why there is none of the others."""
    models, reasons = [], collections.Counter()
    for row in ROWS:
        try:
            models.append((row, npu_lit_models.model_of(row, source_rules(""))))
        except npu_lit_models.NotImported as reason:
            reasons[str(reason).partition(":")[0]] += 1
    return models, reasons


def operation(model):
    (node,) = (
        one
        for one in model.get_ordered_ops()
        if one.get_type_name() not in ("Parameter", "Constant", "Result")
    )
    return node


def refused(node, generation="4000"):
    return {one.rule for one in node_refusals(node, generation=generation, release="")}


def test_configurations_are_read_with_types_shapes_constants_and_attributes():
    found = npu_lit.configurations([TEXT], {"Turn": "Turned"})
    assert [row["layer"] for row in found] == ["Turned"] * 3
    by_operands = {tuple(row["operands"]): row["attributes"] for row in found}
    assert by_operands == {
        ("f16[2, 3]", "i64[2] = 1, 0"): {"mode": "FAST", "sizes": [1, -2], "keep": True},
        ("f16[3, 2]", ""): {"order": [1, 0], "attr": {"a": "B"}},
        ("f16[2, 3]", "i64[2]"): {"keep": True},
    }


@pytest.mark.parametrize("generation", GENERATIONS)
def test_all_that_the_importer_makes_is_accepted(made, generation):
    models, reasons = made
    assert reasons == NOT_IMPORTED
    assert len(models) == len(ROWS) - sum(NOT_IMPORTED.values())
    found = {
        json.dumps(row): rules
        for row, model in models
        if (rules := refused(operation(model), generation))
    }
    assert found == {}


def test_operands_have_the_types_and_ranks_that_the_rules_name():
    """Rows without an operation of OpenVINO."""
    for row in ROWS:
        operands = source_rules("").layer(row["layer"])["operands"]
        for operand, text in zip(operands, row["operands"], strict=False):
            kind, _, shape = text.partition(" = ")[0].rstrip("]").partition("[")
            if not kind or operand["is_variadic"]:
                continue
            rank = len(shape.split(",")) if shape else 0
            assert operand["types"] is None or kind in operand["types"], row
            assert operand["ranks"] is None or rank in operand["ranks"], row


def test_bfloat16_in_place_of_float_is_refused_where_the_layer_has_types(made):
    verdicts = collections.defaultdict(set)
    for row, _ in made[0]:
        mutated = json.loads(re.sub(r'"f(16|32)(?=["\[])', '"bf16', json.dumps(row)))
        try:
            model = npu_lit_models.model_of(mutated, source_rules(""))
        except npu_lit_models.NotImported:  # as the numbers of an integer operand are, of float
            continue
        if mutated != row:
            verdicts[row["layer"]].add(frozenset(refused(operation(model))))
    assert {name for name, found in verdicts.items() if frozenset() in found} == UNTYPED
    assert set().union(*verdicts.values()) == {frozenset(), frozenset({"operand types"})}


def test_constant_that_becomes_an_input_is_refused_where_the_rules_ask_for_one(made):
    found = set()
    for row, model in made[0]:
        node = operation(model)
        for index, source in enumerate(node.input_values()):
            if source.get_node().get_type_name() != "Constant":
                continue
            other = ops.parameter(list(source.get_shape()), source.get_element_type())
            node.input(index).replace_source_output(other.output(0))
            if "constant inputs" in refused(node):
                found.add((row["layer"], index))
            node.input(index).replace_source_output(source)
    assert found == CONSTANT
