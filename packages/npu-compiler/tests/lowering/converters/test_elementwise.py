"""Elementwise ops against eager: op x dtype x layout."""

from __future__ import annotations

import math

import pytest
import torch

aten = torch.ops.aten

FLOATS = [torch.float32, torch.bfloat16, torch.float16]

UNARY = [
    aten.neg.default, aten.abs.default, aten.exp.default, aten.sin.default, aten.cos.default,
    aten.tanh.default, aten.erf.default, aten.sigmoid.default, aten.relu.default,
    aten.sign.default, aten.floor.default, aten.ceil.default, aten.round.default,
    aten.trunc.default, aten.square.default, aten.gelu.default, aten.silu.default,
    aten.mish.default, aten.hardsigmoid.default, aten.hardswish.default, aten.elu.default,
    aten.leaky_relu.default, aten.softplus.default, aten.hardtanh.default, aten.relu6.default,
    aten.reciprocal.default, aten.exp2.default, aten.atan.default, aten.sinh.default,
    aten.cosh.default, aten.asinh.default, aten.expm1.default,
]  # fmt: skip
POSITIVE = [
    aten.log.default, aten.sqrt.default, aten.rsqrt.default, aten.log2.default,
    aten.log10.default, aten.tan.default, aten.asin.default, aten.acos.default,
    aten.logit.default, aten.atanh.default, aten.log1p.default,
]  # fmt: skip
BINARY = [
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.maximum.default,
    aten.minimum.default, aten.max.other, aten.min.other, aten.multiply.Tensor,
    aten.rsub.Tensor, aten.pow.Tensor_Tensor,
]  # fmt: skip


def layouts(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    base = torch.randn(4, 6).to(dtype)
    return {
        "contiguous": base,
        "transposed": base.t(),
        "zero_dim": base[0, 0].clone(),
        "rank4": torch.randn(2, 3, 4, 5).to(dtype),
    }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "zero_dim", "rank4"])
@pytest.mark.parametrize("op", UNARY, ids=str)
def test_unary_equals_eager(lowers, op, layout, dtype):
    if op in (aten.reciprocal.default,):
        value = layouts(dtype)[layout].abs() + 0.5
    else:
        value = layouts(dtype)[layout]
    lowers(lambda x: op(x), value)


@pytest.mark.parametrize("op", POSITIVE, ids=str)
def test_unary_on_the_open_interval_equals_eager(lowers, op):
    lowers(lambda x: op(x), torch.rand(4, 6) * 0.8 + 0.1)


def test_acosh_equals_eager_above_one(lowers):
    lowers(torch.acosh, torch.rand(4, 6) + 1.05)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shapes", [((4, 6), (4, 6)), ((4, 6), (6,)), ((4, 1), (1, 6)), ((3,), ())])
@pytest.mark.parametrize("op", BINARY, ids=str)
def test_binary_equals_eager(lowers, op, shapes, dtype):
    a, b = (torch.rand(shape).to(dtype) + 0.5 for shape in shapes)
    lowers(lambda x, y: op(x, y), a, b)


@pytest.mark.parametrize("op", [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers_stay_integers(lowers, op, dtype):
    a = torch.randint(-9, 9, (4, 6), dtype=dtype)
    lowers(lambda x, y: op(x, y), a, a.flip(0))


@pytest.mark.parametrize("divisor", [3, -3])
def test_floor_division_of_integers_floors(lowers, divisor):
    lowers(lambda x: x // divisor, torch.arange(-9, 9))


@pytest.mark.parametrize("divisor", [3, -3])
def test_remainder_of_integers_has_the_sign_of_the_divisor(lowers, divisor):
    lowers(lambda x: x % divisor, torch.arange(-9, 9))


@pytest.mark.parametrize("op", [torch.fmod, torch.remainder], ids=["fmod", "remainder"])
@pytest.mark.parametrize("divisor", [1, 2.0, -1024])
def test_rest_by_a_power_of_two_is_exact_of_any_quotient(lowers, op, divisor):
    found = [123456789.0, 1e10, -1e10, 3e38, -3e38, 5.75, -5.75, 1e-30, math.inf, math.nan]
    lowers(lambda x: op(x, divisor), torch.tensor(found), tolerance=0)


@pytest.mark.parametrize("op", [torch.fmod, torch.remainder], ids=["fmod", "remainder"])
@pytest.mark.parametrize("divisor", [7.0, 3, 0.5, math.inf])
def test_rest_of_floats_by_other_numbers_is_eager(compiled, op, divisor):
    harmless, large = torch.rand(4), torch.tensor([123456789.0, 1e10, -1e10, 3e38])
    fast = compiled(lambda x: op(x * 1, divisor))
    for values in (harmless, large):
        assert torch.equal(fast(values), op(values, divisor))
    assert any(one.startswith(f"aten.{op.__name__}") for one in fast.eager_ops)


def test_integer_division_gives_floats(lowers):
    lowers(lambda x, y: x / y, torch.arange(1, 7), torch.arange(2, 8))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x + 1, id="x+1"),
        pytest.param(lambda x: x * 2.5, id="x*2.5"),
        pytest.param(lambda x: 1 - x, id="1-x"),
        pytest.param(lambda x: x**2, id="x**2"),
        pytest.param(lambda x: x.abs() ** 1.7, id="x.abs()**1.7"),
        pytest.param(lambda x: torch.add(x, x, alpha=3), id="add(x,x,alpha=3)"),
        pytest.param(lambda x: torch.clamp(x, -0.5, 0.5), id="clamp(x,-0.5,0.5)"),
        pytest.param(lambda x: torch.clamp_min(x, 0.1), id="clamp_min(x,0.1)"),
        pytest.param(
            lambda x: torch.div(x, 0.3, rounding_mode="floor"),
            id="div(x,0.3,rounding_mode='floor')",
        ),
        pytest.param(
            lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
            id="div(x,0.3,rounding_mode='trunc')",
        ),
        pytest.param(lambda x: torch.addcmul(x, x, x, value=0.5), id="addcmul(x,x,x,value=0.5)"),
        pytest.param(lambda x: torch.lerp(x, x * 2, 0.25), id="lerp(x,x*2,0.25)"),
        pytest.param(
            lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
            id="gelu(x,approximate='tanh')",
        ),
        pytest.param(
            lambda x: torch.nn.functional.softplus(x, beta=2, threshold=0.5),
            id="softplus(x,beta=2,threshold=0.5)",
        ),
        pytest.param(lambda x: torch.nn.functional.elu(x, alpha=0.7), id="elu(x,alpha=0.7)"),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scalar_arguments_keep_the_dtype(lowers, function, dtype):
    lowers(function, torch.randn(4, 6).to(dtype))


def test_mixed_dtypes_are_promoted(lowers):
    found = lowers(lambda x, y: x + y, torch.arange(6), torch.randn(6))
    assert found.results[0].dtype is torch.float32


def test_a_float_number_promotes_integers(lowers):
    lowers(lambda x: x * 0.5, torch.arange(6))


def test_bool_sums_are_logic(lowers):
    a = torch.tensor([True, False, True])
    lowers(lambda x, y: (x + y, x * y), a, a.flip(0))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda g, y: aten.sigmoid_backward(g, y), id="aten.sigmoid_backward(g,y)"),
        pytest.param(lambda g, y: aten.tanh_backward(g, y), id="aten.tanh_backward(g,y)"),
        pytest.param(
            lambda g, y: aten.threshold_backward(g, y, 0), id="aten.threshold_backward(g,y,0)"
        ),
    ],
)
def test_gradients_equal_eager(lowers, function):
    lowers(function, torch.randn(4, 6), torch.rand(4, 6) - 0.5)


def test_dynamic_sizes_serve_other_sizes(lowers):
    def function(x, y):
        return torch.nn.functional.silu(x) * y

    lowers(
        function,
        torch.randn(3, 4),
        torch.randn(3, 4),
        dynamic=True,
        run_on=(torch.randn(7, 5), torch.randn(7, 5)),
    )


def test_prelu_has_a_slope_per_channel(lowers):
    lowers(lambda x, w: torch.prelu(x, w), torch.randn(2, 3, 4), torch.randn(3))


@pytest.mark.parametrize("function", [torch.log1p, torch.expm1], ids=["log1p", "expm1"])
def test_small_numbers_keep_their_digits(lowers, function):
    small = torch.tensor([1e-8, -1e-8, 1e-4, -3e-4, 0.3, -0.49, 0.5])
    lowers(lambda x: function(x) / x, small, tolerance=1e-6)


def test_log_sigmoid_of_large_numbers_is_finite(lowers):
    x = torch.tensor([-100.0, -3.0, 0.0, 2.0, 90.0])
    lowers(torch.nn.functional.logsigmoid, x, whole=True)
