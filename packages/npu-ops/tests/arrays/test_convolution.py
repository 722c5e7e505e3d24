"""Convolution against torch's on the CPU in float64."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import npu_ops
from npu_ops.errors import OperatorInputError

CONVOLUTIONS = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}
CASES = {
    "1d": ((2, 3, 20), (4, 3, 5), {}),
    "2d": ((2, 3, 16, 15), (4, 3, 3, 2), {}),
    "3d": ((1, 2, 6, 7, 8), (3, 2, 3, 3, 3), {"padding": 1}),
    "strided": ((1, 3, 16, 16), (4, 3, 3, 3), {"strides": (2, 1), "padding": (1, 0)}),
    "dilated": ((1, 3, 16, 16), (4, 3, 3, 3), {"dilation": 2, "padding": 2}),
    "grouped": ((1, 4, 9, 9), (6, 2, 3, 3), {"groups": 2}),
    "depthwise": ((1, 4, 9, 9), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
}


def draw(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def reference(x, w, bias, strides=1, padding=0, dilation=1, groups=1):
    x, w, bias = (
        None if array is None else torch.from_numpy(array).double() for array in (x, w, bias)
    )
    return CONVOLUTIONS[x.dim()](x, w, bias, strides, padding, dilation, groups).numpy()


def close(result, expected, tolerance=1e-5):
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("case", CASES)
def test_each_kind(case):
    shape, weights_shape, options = CASES[case]
    x, w = draw(*shape), draw(*weights_shape)
    close(
        npu_ops.Convolution(shape, weights_shape, **options).run(x, w),
        reference(x, w, None, **options),
    )


@pytest.mark.parametrize("dtype, tolerance", [(np.float16, 2e-3), (np.float32, 1e-5)])
def test_weights_set_once_with_a_bias(dtype, tolerance):
    x, w, bias = draw(2, 3, 9, 9, dtype=dtype), draw(4, 3, 3, 3, dtype=dtype), draw(4, dtype=dtype)
    convolution = npu_ops.Convolution(x.shape, w.shape, bias=True)
    convolution.set_weights(w, bias)
    result = convolution.run(x)
    assert result.dtype == dtype
    close(result, reference(x, w, bias), tolerance)


def test_a_bias_may_be_spread_over_the_axes():
    x, w, bias = draw(2, 3, 9, 9), draw(4, 3, 3, 3), draw(4)
    convolution = npu_ops.Convolution(x.shape, w.shape, bias=True)
    close(convolution.run(x, w, bias.reshape(1, 4, 1, 1)), reference(x, w, bias))


@pytest.mark.parametrize(
    "arguments, options, said",
    [
        (((2, 3), (4, 3)), {}, "`input_shape` must be a shape of 3 or 4 or 5 sizes"),
        (((1, 3, 8, 8), (4, 3, 3)), {}, "`weights_shape` must be a shape of 4 sizes"),
        (((1, 3, 8, 8), (4, 2, 3, 3)), {}, "`weights_shape` must be .filters, channels / groups"),
        (((1, 4, 8, 8), (3, 2, 3, 3)), {"groups": 2}, "groups must divide the filters"),
        (((1, 3, 2, 8), (4, 3, 3, 3)), {}, "got a span of 3 for 2 elements of axis 2"),
        (
            ((1, 3, 8, 8), (4, 3, 3, 3)),
            {"strides": (1, 2, 3)},
            "`strides` must be one integer, or 2",
        ),
        (
            ((1, 3, 8, 8), (4, 3, 3, 3)),
            {"strides": 0},
            "`strides` must be an integer of at least 1",
        ),
        (
            ((1, 3, 8, 8), (4, 3, 3, 3)),
            {"padding": -1},
            "`padding` must be an integer of at least 0",
        ),
    ],
)
def test_what_cannot_be_is_an_exception(arguments, options, said):
    with pytest.raises(OperatorInputError, match=said) as error:
        npu_ops.Convolution(*arguments, **options)
    assert error.value.code == "operator-input"


def test_a_wrong_array_is_an_exception():
    convolution = npu_ops.Convolution((1, 3, 8, 8), (4, 3, 3, 3))
    with pytest.raises(OperatorInputError, match=r"`X` must be of shape \(1, 3, 8, 8\)"):
        convolution.run(draw(1, 3, 8, 9), draw(4, 3, 3, 3))
