"""Products of numbers, counted against numbers that were worked out by hand."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest

from npu_compiler.roofline.counts import count_products, count_traffic


def given(*shape, dtype=ov.Type.f32):
    return ops.parameter(list(shape), dtype)


def weight(*shape, dtype=np.float32):
    return ops.constant(np.ones(shape, dtype))


@pytest.mark.parametrize(
    "left, right, transposed, count",
    [
        ((2, 64), (64, 32), (False, False), 2 * 64 * 32),
        ((64, 2), (32, 64), (True, True), 2 * 64 * 32),
        ((3, 1, 4, 8), (5, 8, 6), (False, False), 3 * 5 * 4 * 8 * 6),
        ((8,), (8, 6), (False, False), 8 * 6),
        ((4, 8), (8,), (False, False), 4 * 8),
    ],
)
def test_matmul(left, right, transposed, count):
    found = count_products(ops.matmul(given(*left), given(*right), *transposed))
    assert (found.operation, found.count, found.is_narrow) == ("MatMul", count, False)


def convolution(weights, size=10, pad=0, stride=1, dilation=1):
    one = [1, 1]
    return ops.convolution(
        given(1, 4, size, size), weights, [stride] * 2, [pad] * 2, [pad] * 2,
        [dilation * n for n in one],
    )  # fmt: skip


def test_convolution():
    # 8 x 8 places, 3 x 3 window, 4 to 8 channels
    assert count_products(convolution(weight(8, 4, 3, 3))).count == 8 * 8 * 9 * 4 * 8


def test_what_falls_on_padding_is_not_counted():
    # along one axis of 10 places with 3 taps, two taps fall outside: 28 instead of 30
    assert count_products(convolution(weight(8, 4, 3, 3), pad=1)).count == 28 * 28 * 4 * 8


def test_convolution_with_strides_and_dilations():
    # taps reach over 5, so there are 6 places, and every second of them is 3
    node = convolution(weight(8, 4, 3, 3), stride=2, dilation=2)
    assert count_products(node).count == 3 * 3 * 9 * 4 * 8


def test_grouped_convolution():
    node = ops.group_convolution(
        given(1, 4, 10, 10), weight(4, 2, 1, 3, 3), [1, 1], [0, 0], [0, 0], [1, 1]
    )
    assert count_products(node).count == 8 * 8 * 9 * 4 * 2


def test_transposed_convolution():
    node = ops.convolution_backprop_data(given(1, 4, 5, 5), weight(4, 8, 2, 2), [2, 2])
    assert count_products(node).count == 5 * 5 * 4 * 4 * 8


@pytest.mark.parametrize(
    "causal, pairs", [(False, 3 * 5), (True, 1 + 2 + 3)], ids=["full", "causal"]
)
def test_attention(causal, pairs):
    node = ops.scaled_dot_product_attention(
        given(2, 4, 3, 8), given(2, 4, 5, 8), given(2, 4, 5, 16), causal=causal
    )
    assert count_products(node).count == 2 * 4 * pairs * (8 + 16)


def test_weights_of_few_bits_go_at_the_rate_of_8_bits():
    packed = ops.convert(weight(64, 32, dtype=np.uint8), ov.Type.f32)
    scaled = ops.multiply(ops.subtract(packed, weight(1, 32)), weight(1, 32))
    assert count_products(ops.matmul(given(2, 64), scaled, False, False)).is_narrow


def test_the_array_does_not_compute_functions():
    assert count_products(ops.softmax(given(2, 4), 1)) is None


def parts(outputs, inputs):
    found = count_traffic(ov.Model(outputs, inputs, "m"))
    return found.weight_bytes, found.input_bytes, found.output_bytes


def constant(*shape, dtype=np.float32):
    return ops.constant(np.ones(shape, dtype))


def test_weights_are_float16_and_ports_are_what_they_are():
    x = ops.parameter([2, 64], ov.Type.f32)
    y = ops.add(ops.matmul(x, constant(64, 32), False, False), constant(32))
    assert parts([y], [x]) == ((64 * 32 + 32) * 2, 2 * 64 * 4, 2 * 32 * 4)


def test_results_inside_a_program_stay_in_the_scratchpad():
    x = ops.parameter([1000, 1000], ov.Type.f16)
    y = ops.reduce_sum(ops.exp(ops.exp(x)), ops.constant([0, 1]), keep_dims=False)
    assert parts([y], [x]) == (0, 2_000_000, 2)


def test_packed_weights_count_as_packed():
    x = ops.parameter([2, 64], ov.Type.f16)
    packed = ops.convert(constant(64, 32, dtype=np.int8), ov.Type.f16)
    weights = ops.multiply(packed, constant(1, 32, dtype=np.float16))
    y = ops.matmul(x, weights, False, False)
    assert parts([y], [x]) == (64 * 32 + 32 * 2, 2 * 64 * 2, 2 * 32 * 2)


def test_rows_that_are_not_looked_up_are_not_read():
    ids = ops.parameter([1, 3], ov.Type.i64)
    y = ops.gather(constant(1000, 16), ids, ops.constant(0))
    assert parts([y], [ids]) == (3 * 16 * 2, 3 * 8, 3 * 16 * 4)


def test_a_table_that_is_also_multiplied_is_read_once():
    ids = ops.parameter([1, 3], ov.Type.i64)
    table = constant(1000, 16)
    y = ops.matmul(ops.gather(table, ids, ops.constant(0)), table, False, True)
    assert parts([y], [ids]) == (1000 * 16 * 2, 3 * 8, 3 * 1000 * 4)


def test_what_the_compiler_folds_counts_as_the_smaller():
    x = ops.parameter([16], ov.Type.f32)
    wide = ops.broadcast(constant(1, 4), ops.constant([100, 4]))  # 4 numbers make 400
    few = ops.reduce_sum(constant(100, 16), ops.constant([0]), keep_dims=False)  # 1600 make 16
    y = ops.multiply(x, few)
    z = ops.multiply(wide, ops.reduce_sum(x, ops.constant([0]), keep_dims=False))
    assert parts([y, z], [x])[0] == 4 * 2 + 16 * 2


def test_only_a_part_of_an_input_that_is_cut_out_is_read():
    x = ops.parameter([100, 4], ov.Type.f32)
    part = ops.slice(ops.convert(x, ov.Type.f16), *(ops.constant([n]) for n in (0, 5, 1, 0)))
    assert parts([part], [x]) == (0, 5 * 4 * 4, 5 * 4 * 2)


def test_an_input_that_is_returned_as_it_is_does_not_move():
    x = ops.parameter([100], ov.Type.f32)
    assert parts([x], [x]) == (0, 0, 0)


def test_sizes_and_positions_are_in_the_commands():
    x = ops.parameter([100], ov.Type.f16)
    y = ops.exp(ops.reshape(x, ops.constant([10, 10]), special_zero=False))
    assert parts([y], [x])[0] == 0
