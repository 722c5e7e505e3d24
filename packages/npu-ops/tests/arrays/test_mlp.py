"""MLP against numpy in float64."""

import math

import numpy as np
import pytest

import npu_ops
from npu_ops.errors import OperatorInputError

BATCH, HIDDEN, MIDDLE = 3, 16, 24
SIGMOID = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
SOFTPLUS = lambda x: np.log1p(np.exp(x))  # noqa: E731
REFERENCES = {
    "ceiling": (np.ceil, {}),
    "clamp": (lambda x: np.clip(x, -0.5, 0.25), {"min": -0.5, "max": 0.25}),
    "elu": (lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), {"alpha": 0.5}),
    "gelu": (lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))), {}),
    "grn": (
        lambda x: x / np.sqrt((x * x).sum(1, keepdims=True) + 0.1),
        {"grn_bias": 0.1},
    ),
    "hsigmoid": (lambda x: np.clip(x + 3, 0, 6) / 6, {}),
    "hswish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, {}),
    "mish": (lambda x: x * np.tanh(SOFTPLUS(x)), {}),
    "negative": (np.negative, {}),
    "relu": (lambda x: np.maximum(x, 0), {}),
    "sigmoid": (SIGMOID, {}),
    "softplus": (SOFTPLUS, {}),
    "swish": (lambda x: x * SIGMOID(x), {}),
    "tanh": (np.tanh, {}),
}


def draw(*shape, seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def weights(*, gated=False, bias=False):
    shapes = [(MIDDLE, HIDDEN)] * (2 if gated else 1) + [(HIDDEN, MIDDLE)]
    found = []
    for seed, shape in enumerate(shapes):
        found.append(draw(*shape, seed=seed) / 4)
        if bias:
            found.append(draw(shape[0], seed=seed))
    return found


def close(result, expected):
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("activation", sorted(REFERENCES))
def test_each_activation(activation):
    function, numbers = REFERENCES[activation]
    x, (up, down) = draw(BATCH, HIDDEN), weights()
    mlp = npu_ops.MLP((BATCH, HIDDEN), MIDDLE, activation, **numbers)
    expected = function(x.astype(np.float64) @ up.T) @ down.T
    close(mlp.run(x, up, down), expected)


@pytest.mark.parametrize("is_set", [False, True], ids=["per call", "set once"])
@pytest.mark.parametrize("bias", [False, True])
def test_swiglu(bias, is_set):
    x, given = draw(BATCH, HIDDEN).astype(np.float64), weights(gated=True, bias=bias)
    mlp = npu_ops.MLP([BATCH, HIDDEN], MIDDLE, bias=bias)
    gate, value, down = given[::2] if bias else given
    offsets = given[1::2] if bias else (0, 0, 0)
    gated = x @ gate.T + offsets[0]
    expected = (gated * SIGMOID(gated) * (x @ value.T + offsets[1])) @ down.T + offsets[2]
    single = x.astype(np.float32)
    if is_set:
        mlp.set_weights(*given)
    close(mlp.run(single) if is_set else mlp.run(single, *given), expected)


def test_what_cannot_be_is_an_exception():
    for arguments, said in (
        (((BATCH,), MIDDLE), "`input_shape` must be a shape of 2 sizes"),
        (((BATCH, HIDDEN), 0), "`intermediate_size` must be an integer"),
        (((BATCH, HIDDEN), MIDDLE, "rlu"), "`activation` must be one of ceiling, clamp, elu"),
        (((BATCH, HIDDEN), MIDDLE, "clamp"), "clamp must get min, max, got none"),
    ):
        with pytest.raises(OperatorInputError, match=said) as error:
            npu_ops.MLP(*arguments)
        assert error.value.code == "operator-input"
    with pytest.raises(OperatorInputError, match="relu must get no numbers, got"):
        npu_ops.MLP((BATCH, HIDDEN), MIDDLE, "relu", alpha=1.0)
    for least, most in ((1.0, 0.0), (math.nan, 1.0)):
        with pytest.raises(OperatorInputError, match="`min` of clamp must be at most `max`"):
            npu_ops.MLP((BATCH, HIDDEN), MIDDLE, "clamp", min=least, max=most)


def test_a_missing_weight_is_an_exception():
    with pytest.raises(OperatorInputError, match="weights must be W1, V, W2, got 2"):
        npu_ops.MLP((BATCH, HIDDEN), MIDDLE).run(draw(BATCH, HIDDEN), *weights())
