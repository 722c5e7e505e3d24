"""Products of numbers, counted against numbers that were worked out by hand."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest

from npu_compiler.time_bound.products import count_products


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
