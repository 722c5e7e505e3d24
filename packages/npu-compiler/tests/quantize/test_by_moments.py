"""GPTQ over a whole model: the types of its weights, their order, and what earlier errors do."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest

from npu_compiler.openvino_core import openvino_core
from npu_compiler.quantize import by_moments
from npu_compiler.quantize.by_moments import compress_by_moments
from npu_compiler.quantize.gptq import round_by_moments


def constant(*shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return ops.constant(values / np.sqrt(shape[1]).astype(np.float32))


def inputs(count=16):
    rng = np.random.default_rng(9)
    basis = rng.standard_normal((8, 64), np.float32)
    noise = rng.standard_normal((count, 16, 64), np.float32)
    return [[x] for x in rng.standard_normal((count, 16, 8), np.float32) @ basis + 0.1 * noise]


def named(model):
    """The model with names that are its nodes' own."""
    for index, node in enumerate(model.get_ordered_ops()):
        node.set_friendly_name(f"node {index}")
    return model


def chain(*, transpose_a=False, transpose_b=True):
    """Three products, the first as its arguments say."""
    x = ops.parameter([64, 16] if transpose_a else [16, 64], ov.Type.f32)
    first = ops.matmul(x, constant(64, 64), transpose_a, transpose_b)
    second = ops.matmul(ops.tanh(first), constant(64, 64, seed=1), False, True)
    last = ops.matmul(ops.tanh(second), constant(32, 64, seed=2), False, True)
    return named(ov.Model([last], [x]))


def integer_types(model):
    """Element type and shape of each weight's integers, in the order of the model."""
    return [
        (node.get_output_element_type(0).get_type_name(), tuple(node.get_output_shape(0)))
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Constant"
        and node.get_friendly_name().endswith(("/u4", "/i4", "/u8", "/i8"))
    ]


def run(model, calls):
    program = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.concatenate([program(call)[0] for call in calls])


def test_last_product_is_int8_and_the_others_int4():
    model = chain()
    compress_by_moments(model, inputs(), group_size=32)
    assert sorted(integer_types(model)) == [("u4", (64, 2, 32))] * 2 + [("u8", (32, 64))]


def test_symmetric_weights_have_no_zero_points():
    model = chain()
    compress_by_moments(model, inputs(), group_size=64, symmetric=True)
    assert {kind for kind, _ in integer_types(model)} == {"i4", "i8"}
    assert "Subtract" not in {node.get_type_name() for node in model.get_ops()}


def test_only_product_is_int4():
    x = ops.parameter([16, 64], ov.Type.f32)
    model = ov.Model([ops.matmul(x, constant(64, 64), False, True)], [x])
    compress_by_moments(model, inputs(), group_size=64)
    assert [kind for kind, _ in integer_types(model)] == ["u4"]


def test_row_that_no_group_divides_is_int8():
    x = ops.parameter([16, 80], ov.Type.f32)
    first = ops.matmul(x, constant(64, 80), False, True)
    model = ov.Model([ops.matmul(first, constant(8, 64), False, True)], [x])
    compress_by_moments(model, [[np.ones((16, 80), np.float32)]], group_size=64)
    assert [kind for kind, _ in integer_types(model)] == ["u8", "u8"]


def test_embedding_is_int8():
    ids = ops.parameter([16], ov.Type.i64)
    rows = ops.gather(constant(100, 64), ids, ops.constant(0, ov.Type.i64))
    hidden = ops.tanh(ops.matmul(rows, constant(64, 64), False, True))
    model = ov.Model([ops.matmul(hidden, constant(100, 64), False, True)], [ids])
    compress_by_moments(model, [[np.arange(16)]], group_size=64)
    assert sorted(integer_types(model)) == [("u4", (64, 64))] + [("u8", (100, 64))] * 2


def test_small_table_keeps_its_precision():
    ids = ops.parameter([16], ov.Type.i64)
    rows = ops.gather(constant(10, 64), ids, ops.constant(0, ov.Type.i64))
    model = ov.Model([ops.matmul(rows, constant(64, 64), False, True)], [ids])
    compress_by_moments(model, [[np.arange(16) % 10]], group_size=64)
    assert integer_types(model) == [("u4", (64, 64))]


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_layouts_of_a_product_compute_the_same(transpose_a, transpose_b):
    model = chain(transpose_a=transpose_a, transpose_b=transpose_b)
    calls = inputs()
    calls = [[call.T.copy()] for (call,) in calls] if transpose_a else calls
    expected = run(model, calls)
    compress_by_moments(model, calls, group_size=32)
    found = run(model, calls)
    assert np.linalg.norm(found - expected) < 0.2 * np.linalg.norm(expected)


def test_weight_of_two_products_is_replaced_in_both():
    x = ops.parameter([16, 64], ov.Type.f32)
    shared = constant(64, 64)
    first = ops.tanh(ops.matmul(x, shared, False, True))
    second = ops.tanh(ops.matmul(first, shared, False, True))
    model = ov.Model([ops.matmul(second, constant(32, 64), False, True)], [x])
    calls = inputs()
    expected = run(model, calls)
    compress_by_moments(model, calls, group_size=32)
    assert sorted(kind for kind, _ in integer_types(model)) == ["u4", "u8"]
    found = run(model, calls)
    assert np.linalg.norm(found - expected) < 0.5 * np.linalg.norm(expected)


def test_later_products_make_up_for_errors_of_earlier_ones(monkeypatch):
    x = ops.parameter([16, 64], ov.Type.f32)
    hidden = x.output(0)
    for layer in range(6):  # errors add up beside the products
        hidden = ops.add(
            hidden, ops.matmul(ops.tanh(hidden), constant(64, 64, seed=layer), False, True)
        ).output(0)
    model = named(ov.Model([hidden], [x]))
    other, calls = model.clone(), inputs()
    expected = run(model, calls)
    compress_by_moments(model, calls, group_size=64)

    def without_drift(*args, drift, **options):
        return round_by_moments(*args, **options)

    monkeypatch.setattr(by_moments, "round_by_moments", without_drift)
    compress_by_moments(other, calls, group_size=64)
    error = np.linalg.norm(run(model, calls) - expected)
    assert error < 0.95 * np.linalg.norm(run(other, calls) - expected)


def test_two_runs_are_equal():
    model = chain()
    other = model.clone()
    calls = inputs()
    compress_by_moments(model, calls, group_size=32)
    compress_by_moments(other, calls, group_size=32)
    np.testing.assert_array_equal(run(model, calls), run(other, calls))
