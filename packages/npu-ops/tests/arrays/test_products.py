"""MatMul, QMatMul, Linear, QLinear against numpy in float64."""

import numpy as np
import pytest

import npu_ops
from npu_ops.errors import OperatorInputError

TOLERANCE = {np.float16: 2e-3, np.float32: 2e-5}


def close(result, expected, dtype):
    assert result.dtype == dtype
    assert result.shape == expected.shape
    scale = max(float(np.abs(expected).max()), 1e-6)
    assert np.abs(result.astype(np.float64) - expected).max() <= TOLERANCE[dtype] * scale


def draw(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def double(array):
    return array.astype(np.float64)


def pack(integers):
    """Two 4-bit numbers in a byte, the first in the low half."""
    low, high = integers[:, ::2] & 15, integers[:, 1::2] & 15
    return (low | (high << 4)).astype(np.uint8)


dtypes = pytest.mark.parametrize("dtype", [np.float16, np.float32])


@dtypes
def test_matmul(dtype):
    x, w = draw(5, 64, dtype=dtype), draw(7, 64, dtype=dtype)
    close(npu_ops.MatMul(64, 7, 5).run(x, w), double(x) @ double(w).T, dtype)


def test_one_object_takes_both_dtypes_and_new_weights_each_time():
    product = npu_ops.MatMul(8, 3, 2)
    for dtype in (np.float32, np.float16, np.float32):
        for seed in range(3):
            x, w = draw(2, 8, dtype=dtype), draw(3, 8, dtype=dtype) + dtype(seed)
            close(product.run(x, w), double(x) @ double(w).T, dtype)


def test_half_precision_is_added_up_in_float32():
    # In float16 the sum would stop at 2048, where 1 is half a step.
    x, w = np.ones((1, 4096), np.float16), np.ones((1, 4096), np.float16)
    assert npu_ops.MatMul(4096, 1, 1).run(x, w)[0, 0] == 4096


@dtypes
def test_linear_with_weights_set_once(dtype):
    linear = npu_ops.Linear(64, 7, 5, bias=True)
    w, bias = draw(7, 64, dtype=dtype), draw(7, dtype=dtype)
    linear.set_weights(w, bias)
    for seed in range(3):
        x = draw(5, 64, dtype=dtype) + dtype(seed)
        close(linear.run(x), double(x) @ double(w).T + double(bias), dtype)


def test_weights_that_were_set_are_not_changed_from_outside():
    linear = npu_ops.Linear(4, 2, 1)
    x, w = draw(1, 4), draw(2, 4)
    expected = double(x) @ double(w).T
    linear.set_weights(w)
    w[:] = 0
    close(linear.run(x), expected, np.float32)


def test_weights_can_be_set_again():
    linear = npu_ops.Linear(4, 2, 1)
    x = draw(1, 4)
    for factor in (1, 3):
        w = draw(2, 4) * np.float32(factor)
        linear.set_weights(w)
        close(linear.run(x), double(x) @ double(w).T, np.float32)


def test_op_id_keeps_weights_under_names():
    linear = npu_ops.Linear(4, 2, 1)
    x, weights = draw(1, 4), {name: draw(2, 4) + i for i, name in enumerate("ab", 1)}
    weights = {name: w.astype(np.float32) for name, w in weights.items()}
    for _ in range(2):
        for name, w in weights.items():
            close(linear.run(x, w, name), double(x) @ double(w).T, np.float32)
    close(linear.run(x, op_id="b"), double(x) @ double(weights["b"]).T, np.float32)
    other = draw(2, 4) * np.float32(5)
    close(linear.run(x, other, "a"), double(x) @ double(other).T, np.float32)


@dtypes
@pytest.mark.parametrize("is_set", [False, True], ids=["per call", "set once"])
def test_int8_weights(dtype, is_set):
    x = draw(5, 64, dtype=dtype)
    w = np.random.default_rng(0).integers(-128, 128, (7, 64), dtype=np.int8)
    scale = np.abs(draw(7, 1, dtype=dtype)) / dtype(100)
    expected = double(x) @ (double(w) * double(scale)).T
    if is_set:
        linear = npu_ops.QLinear(64, 7, 5)
        linear.set_weights(w, scale)
        result = linear.run(x)
    else:
        result = npu_ops.QMatMul(64, 7, 5).run(x, w, scale)
    close(result, expected, dtype)


@pytest.mark.parametrize("is_set", [False, True], ids=["per call", "set once"])
def test_packed_4_bit_weights(is_set):
    x = draw(5, 64)
    w = np.random.default_rng(0).integers(-8, 8, (7, 64), dtype=np.int8)
    w[0, :16] = np.arange(-8, 8)
    scale = np.abs(draw(7, 1)) / np.float32(8)
    linear = npu_ops.QLinear(64, 7, 5, dtype=np.uint8)
    if is_set:
        linear.set_weights(pack(w), scale)
    result = linear.run(x) if is_set else linear.run(x, pack(w), scale)
    close(result, double(x) @ (double(w) * double(scale)).T, np.float32)


def test_quantized_weights_are_kept_under_an_op_id():
    linear = npu_ops.QLinear(8, 2, 1)
    x, w, scale = draw(1, 8), np.ones((2, 8), np.int8), np.full((2, 1), 0.5, np.float32)
    close(linear.run(x, w, scale, "id"), 0.5 * double(x) @ double(w).T, np.float32)
    close(linear.run(x, op_id="id"), 0.5 * double(x) @ double(w).T, np.float32)


def test_results_share_no_memory():
    product = npu_ops.MatMul(4, 2, 1)
    x, w = draw(1, 4), draw(2, 4)
    first = product.run(x, w)
    kept = first.copy()
    product.run(x * 2, w)
    assert np.array_equal(first, kept)
    first[:] = 0


def test_arrays_of_any_layout_and_without_write_permission():
    x, w = draw(64, 5).T, draw(14, 64)[::2]
    w.setflags(write=False)
    fixed = np.ascontiguousarray(w)
    fixed.setflags(write=False)
    for weights in (w, fixed):
        close(npu_ops.MatMul(64, 7, 5).run(x, weights), double(x) @ double(w).T, np.float32)


@pytest.mark.parametrize(
    "x, w, said",
    [
        (np.ones((2, 3), np.float32), np.ones((2, 4), np.float32), "`X` must be of shape (1, 4)"),
        (np.ones((1, 4), np.float32), np.ones((4, 2), np.float32), "`W` must be of shape (2, 4)"),
        (np.ones((1, 4)), np.ones((2, 4)), "`W` must be of shape (2, 4), float16 or float32, got"),
        (np.ones((1, 4), np.float16), np.ones((2, 4), np.float32), "float32, got shape (1, 4), f"),
        (np.ones((1, 4), np.float32), [[1.0] * 4] * 2, "`W` must be a numpy array"),
        (None, np.ones((2, 4), np.float32), "`X` must be a numpy array"),
        (np.ones((1, 4), np.float32), np.ones((2, 4), ">f4"), "in foreign byte order"),
    ],
)
def test_a_wrong_array_is_an_exception(x, w, said):
    with pytest.raises(OperatorInputError) as error:
        npu_ops.MatMul(4, 2, 1).run(x, w)
    assert said in str(error.value)
    assert error.value.code == "operator-input"


def test_a_wrong_scale_is_an_exception():
    w, scale = np.ones((2, 4), np.int8), np.ones((2,), np.float32)
    with pytest.raises(OperatorInputError, match=r"`scale` must be of shape \(2, 1\)"):
        npu_ops.QMatMul(4, 2, 1).run(draw(1, 4), w, scale)
    with pytest.raises(OperatorInputError, match=r"`W` must be of shape .* int8, got .* float32"):
        npu_ops.QMatMul(4, 2, 1).run(draw(1, 4), draw(2, 4), scale)


@pytest.mark.parametrize(
    "sizes", [(0, 1, 1), (1, -1, 1), (1, 1, 1.5), (True, 1, 1), ("4", 1, 1), (1, 1, 1 << 40)]
)
def test_a_size_that_cannot_be_is_an_exception(sizes):
    with pytest.raises(OperatorInputError, match="must be an integer of at least 1") as error:
        npu_ops.MatMul(*sizes)
    assert error.value.code == "operator-input"


def test_without_weights_there_is_no_result():
    for options in ({}, {"op_id": "none"}):
        with pytest.raises(OperatorInputError, match="weights must be set or given") as error:
            npu_ops.Linear(4, 2, 1).run(draw(1, 4), **options)
        assert error.value.code == "operator-weights"


def test_a_bias_that_was_not_announced_is_an_exception():
    with pytest.raises(OperatorInputError, match="weights must be W, got 2"):
        npu_ops.Linear(4, 2, 1).set_weights(draw(2, 4), draw(2))
    with pytest.raises(OperatorInputError, match="`bias` must be a numpy array"):
        npu_ops.Linear(4, 2, 1, bias=True).set_weights(draw(2, 4))


def test_quantized_weights_are_int8_or_packed():
    for dtype in (np.float32, np.int16, "no dtype"):
        with pytest.raises(OperatorInputError, match="`dtype` must be int8, or uint8"):
            npu_ops.QMatMul(4, 2, 1, dtype=dtype)
    with pytest.raises(OperatorInputError, match="inC must be even"):
        npu_ops.QMatMul(5, 2, 1, dtype=np.uint8)
