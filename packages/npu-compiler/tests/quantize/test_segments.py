"""Running a model in pieces: the values at each product, and weights that change in between."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest

from npu_compiler.openvino_core import openvino_core
from npu_compiler.quantize.segments import SegmentedModel


def residual_model(size=-1):
    """Two products in a row, each beside a path around it; the second one's shape is computed."""
    rng = np.random.default_rng(0)
    x = ops.parameter([size, 4], ov.Type.f32)
    weights = [ops.constant(rng.standard_normal((4, 4), np.float32)) for _ in range(3)]
    first = ops.matmul(x, weights[0], False, True)
    beside = ops.matmul(x, weights[1], False, True)
    joined = ops.add(ops.tanh(first), ops.multiply(x, beside))
    shaped = ops.reshape(joined, ops.shape_of(x), False)
    second = ops.matmul(shaped, weights[2], False, True)
    return ov.Model([ops.add(second, x)], [x]), [first, beside, second]


def values_at(output, model, samples):
    found = openvino_core().compile_model(
        ov.Model([output], model.get_parameters()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return [found(sample)[0] for sample in samples]


def samples(*sizes):
    rng = np.random.default_rng(1)
    return [[rng.standard_normal((size, 4), np.float32)] for size in sizes]


@pytest.mark.parametrize("size, sizes", [(3, (3, 3)), (-1, (2, 5))], ids=["fixed", "varying"])
def test_values_are_those_of_the_whole_model(size, sizes):
    model, products = residual_model(size)
    calls = samples(*sizes)
    expected = values_at(products[2].input_value(0), model, calls)
    running = SegmentedModel(model, calls)
    running.advance(products[0].input(0))
    found = running.advance(products[2].input(0))
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


def test_products_of_one_input_get_one_list():
    model, products = residual_model()
    calls = samples(2, 5)
    running = SegmentedModel(model, calls)
    found = running.advance(products[0].input(0))
    assert found is running.advance(products[1].input(0))
    assert all(np.array_equal(left, right) for left, (right,) in zip(found, calls, strict=True))


def test_weight_that_changes_counts_for_what_comes_after():
    calls = samples(3)
    changed = ops.constant(np.eye(4, dtype=np.float32))
    model, products = residual_model()
    products[0].input(1).replace_source_output(changed.output(0))
    expected = values_at(products[2].input_value(0), model, calls)
    model, products = residual_model()
    running = SegmentedModel(model, calls)
    running.advance(products[0].input(0))
    products[0].input(1).replace_source_output(changed.output(0))
    np.testing.assert_allclose(running.advance(products[2].input(0))[0], expected[0], rtol=1e-6)


def test_values_that_nothing_ahead_reads_are_dropped():
    model, products = residual_model()
    running = SegmentedModel(model, samples(3))
    running.advance(products[2].input(0))
    ahead = {node.get_friendly_name() for node in model.get_parameters()}
    kept = {node.get_friendly_name() for node in running._parameters.values()}
    assert len(kept) == 2  # the input, which is added at the end, and the second product's
    assert ahead < kept
