"""The published figures."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest

from npu_compiler.npu_rules.source_rules import GENERATIONS
from npu_compiler.roofline.bound import Figure, bound_model, generation_figures


@pytest.mark.parametrize("name, tops", [("3720", 11.5), ("4000", 48.0)])
def test_the_array_has_the_operations_a_second_that_its_maker_names(name, tops):
    assert 2 * generation_figures(name).narrow_macs_per_s / 1e12 == pytest.approx(tops, rel=0.005)


@pytest.mark.parametrize("name", GENERATIONS)
def test_each_figure_says_where_and_when_it_was_published(name):
    figures = [value for value in vars(generation_figures(name)).values() if type(value) is Figure]
    assert len(figures) == 5
    assert all(figure.value > 0 and figure.source and figure.date for figure in figures)


def test_a_generation_without_published_figures_has_none():
    assert generation_figures("5010") is None


def linear(rows: int, dtype=np.float32) -> ov.Model:
    x = ops.parameter([rows, 10], ov.Type.f16)
    weights = ops.convert(ops.constant(np.ones((10, 20), dtype)), ov.Type.f16)
    y = ops.softmax(ops.matmul(x, weights, False, False), 1)
    return ov.Model([y], [x], "m")


def test_one_row_waits_for_memory(round_figures):
    found = bound_model(linear(1), name="m", generation=round_figures)
    # 20 + 400 + 40 bytes at 100 in a microsecond; 200 products at 500
    assert found.memory_s == pytest.approx(4.6e-6)
    assert found.array_s == pytest.approx(0.4e-6)
    assert (found.seconds, found.limit) == (found.memory_s, "memory")


def test_memory_and_array_work_at_once(round_figures):
    found = bound_model(linear(100), name="m", generation=round_figures)
    # 2000 + 400 + 4000 bytes; 20,000 products: both overlap, so the larger one counts
    assert found.memory_s == pytest.approx(64e-6)
    assert found.array_s == pytest.approx(40e-6)
    assert found.seconds == pytest.approx(64e-6)


def test_products_of_8_bits_take_half_the_time(round_figures):
    found = bound_model(linear(100, np.int8), name="m", generation=round_figures)
    assert found.array_s == pytest.approx(20e-6)
    assert found.traffic.weight_bytes == 200


def test_an_array_that_is_slow_sets_the_bound(round_figures):
    x = ops.parameter([1, 1, 40, 8], ov.Type.f16)
    model = ov.Model([ops.scaled_dot_product_attention(x, x, x)], [x], "m")
    found = bound_model(model, name="m", generation=round_figures)
    # 40 x 40 pairs, 8 + 8 products each; 640 bytes in and out
    assert found.array_s == pytest.approx(25_600 / 500e6)
    assert found.memory_s == pytest.approx(12.8e-6)
    assert (found.seconds, found.limit) == (found.array_s, "array")


def test_what_is_left_out_is_told_and_nothing_is_called_a_measurement(round_figures):
    found = bound_model(linear(1), name="m", generation=round_figures)
    assert found.left_out == {"Softmax": 1}
    for text in (str(found), str(found.as_dict())):
        assert "Softmax" in text
        assert "not a measurement" in text
        assert "bound" in text
