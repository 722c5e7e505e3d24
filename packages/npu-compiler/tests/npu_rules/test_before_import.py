"""Replacements of operations by passes: equal results, and refusals without a replacement."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset1 as opset1
import openvino.opset3 as opset3
import openvino.opset4 as opset4
import openvino.opset5 as opset5
import openvino.opset8 as opset8
import openvino.opset15 as ops
import pytest

from npu_compiler.npu_rules.before_import import _REPLACEMENTS, replacement
from npu_compiler.npu_rules.operations import node_refusals
from npu_compiler.npu_rules.source_rules import source_rules
from npu_compiler.openvino_core import openvino_core


def floats(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def whole(*values):
    return np.array(values, np.int64)


def given(shape, dtype="f32"):
    return ops.parameter(shape, getattr(ov.Type, dtype))


def attention(**options):
    return lambda q, k, v, *rest: ops.scaled_dot_product_attention(q, k, v, *rest, **options)


ATTENDED = [floats(2, 3, 4, 8), floats(2, 3, 5, 8), floats(2, 3, 5, 8)]
EQUAL = {
    "slice": (lambda x: ops.slice(x, whole(1), whole(-1), whole(2)), [floats(6, 4)]),
    "slice backwards": (
        lambda x: ops.slice(x, whole(-1), whole(-99), whole(-2), whole(1)), [floats(3, 5)]
    ),
    "slice along two axes, the last first": (
        lambda x: ops.slice(x, whole(0, 1), whole(2, 3), whole(1, 1), whole(-1, 0)),
        [floats(4, 3, 5)],
    ),
    "split by lengths": (
        lambda x: ops.variadic_split(x, np.int64(-2), whole(1, -1, 2)), [floats(2, 6, 3)]
    ),
    "broadcast": (lambda x: opset1.broadcast(x, whole(2, 3, 4)), [floats(3, 1)]),
    "broadcast along axes": (
        lambda x: opset1.broadcast(x, whole(2, 3, 4), whole(0, 2), "EXPLICIT"), [floats(2, 4)]
    ),
    "attention": (attention(), ATTENDED),
    "causal attention": (attention(causal=True), ATTENDED),
    "attention with a mask": (attention(), [*ATTENDED, floats(4, 5)]),
    "attention with a scale": (
        lambda q, k, v, mask: ops.scaled_dot_product_attention(q, k, v, mask, np.float32(0.5)),
        [*ATTENDED, floats(4, 5)],
    ),
    "interpolation to sizes": (
        lambda x: ops.interpolate(x, whole(6, 7), "cubic", "sizes", axes=whole(2, 3)),
        [floats(1, 2, 3, 4)],
    ),
    "interpolation by scales": (
        lambda x: ops.interpolate(
            x, np.array([1, 1, 2, 2], np.float32), "linear_onnx", "scales"
        ), [floats(1, 2, 3, 4)],
    ),
    "shape": (lambda x: opset3.shape_of(x, "i32"), [floats(2, 3)]),
}  # fmt: skip


def results(outputs, parameters, values):
    model = ov.Model(outputs, parameters, "replaced")
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    return list(openvino_core().compile_model(model, "CPU", options)(values).values())


@pytest.mark.parametrize("name", EQUAL)
def test_what_stands_in_place_computes_the_same_and_is_accepted(name):
    make, values = EQUAL[name]
    parameters = [ops.parameter(value.shape, value.dtype.type) for value in values]
    node = make(*parameters)
    assert node_refusals(node, generation="4000") == []
    other = [
        output
        for one in replacement(node)
        for output in one.outputs()
        if not output.get_target_inputs()
    ]
    expected = results(node.outputs(), parameters, values)
    found = results(other, parameters, values)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def refusals(node):
    return node_refusals(node, generation="4000")


def test_an_operation_that_a_pass_leaves_is_refused_with_the_place_of_the_condition():
    node = ops.slice(given([4, 5]), given([1], "i64"), given([1], "i64"), given([1], "i64"),
                     given([1], "i64"))  # fmt: skip
    assert refusals(node) == []  # its size is dynamic, which is a separate refusal
    pillow = ops.interpolate(
        given([1, 2, 3, 4]), whole(6, 8), "bilinear_pillow", "sizes", axes=whole(2, 3)
    )
    (refusal,) = refusals(pillow)
    assert refusal.rule == "operation types"
    assert "ConvertInterpolate11ToInterpolate4 does not replace it" in refusal.detail
    assert "convert_interpolate11_downgrade.cpp at 094c82ee7357" in refusal.source


def test_axes_that_are_computed_leave_a_broadcast():
    node = opset1.broadcast(given([2, 4]), whole(2, 3, 4), given([2], "i64"), "EXPLICIT")
    assert [one.rule for one in refusals(node)] == ["operation types"]


def test_linear_interpolation_of_many_dimensions_stays_of_version_1():
    attributes = {"axes": np.array([2], np.uint64), "mode": "linear"}
    four, six = (opset1.interpolate(given([2] * rank), whole(4), attributes) for rank in (4, 6))
    assert refusals(four) == []
    assert [one.rule for one in refusals(six)] == ["operation types"]


def test_rules_hold_for_what_stands_in_place():
    narrow = [given([2, 3, 4, 8], "bf16") for _ in range(3)]
    found = refusals(ops.scaled_dot_product_attention(*narrow))
    assert {one.rule for one in found} == {"operand types"}
    assert {one.operation for one in found} == {"ScaledDotProductAttention (opset13)"}
    assert "becomes MatMul, and " in found[0].detail
    assert refusals(ops.einsum([given([2, 3]), given([3, 4])], "ij,jk->ik")) == []
    whole_numbers = [given([2, 3], "i64"), given([3, 4], "i64")]
    assert {one.rule for one in refusals(ops.einsum(whole_numbers, "ij,jk->ik"))} == {
        "operand types"
    }


def test_deformable_convolution_without_a_mask_becomes_what_the_importer_lacks():
    inputs = [given([1, 2, 4, 4]), given([1, 18, 4, 4]), given([4, 2, 3, 3])]
    options = [[1, 1], [1, 1], [1, 1], [1, 1]]
    mask = given([1, 9, 4, 4])
    assert refusals(opset8.deformable_convolution(*inputs, *options, mask=mask)) == []
    (refusal,) = refusals(opset8.deformable_convolution(*inputs, *options))
    assert "becomes DeformableConvolution, and the importer does not accept it" in refusal.detail


@pytest.mark.parametrize("opset", [opset1, opset3, opset4, opset5, ops])
def test_thresholds_of_boxes_get_a_dimension(opset):
    node = opset.non_max_suppression(
        given([1, 10, 4]), given([1, 2, 10]), np.int64(3), np.float32(0.5), given([], "f32")
    )
    assert refusals(node) == []


def test_detection_output_of_version_8_gets_its_number_of_classes():
    attributes = {
        "keep_top_k": np.array([3]), "nms_threshold": np.float32(0.5), "normalized": True,
    }  # fmt: skip
    node = ops.detection_output(given([1, 40]), given([1, 30]), given([1, 2, 40]), attributes)
    (other,) = replacement(node)
    assert other.get_attributes()["num_classes"] == 3


def test_every_pass_that_makes_something_else_is_known_by_what_it_makes():
    rows = source_rules().content["rewritten"]
    others = {(row["type"], row["opset"]) for row in rows if row["into"] is None}
    assert others == set(_REPLACEMENTS)
    assert all(row["conditions"] for row in rows if row["into"] is None)
