"""Elementwise ops against eager, one program for each dtype and layout."""

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
    aten.exp2.default, aten.atan.default, aten.sinh.default,
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
def test_unary_equals_eager(lowers, layout, dtype):
    lowers({str(op): op for op in UNARY}, layouts(dtype)[layout])


@pytest.mark.parametrize("layout", ["contiguous", "zero_dim"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reciprocal_of_positive_numbers_equals_eager(lowers, layout, dtype):
    lowers(aten.reciprocal.default, layouts(dtype)[layout].abs() + 0.5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_root_as_a_power_equals_eager_at_the_edges(lowers, dtype):
    edges = torch.tensor([-math.inf, -1.0, -0.0, 0.0, 0.25, math.inf, math.nan], dtype=dtype)
    lowers(lambda x: torch.pow(x, 0.5), edges)
    lowers(lambda x: 1 / torch.pow(x, 0.5), edges)


def test_unary_on_the_open_interval_equals_eager(lowers):
    lowers({str(op): op for op in POSITIVE}, torch.rand(4, 6) * 0.8 + 0.1)


def test_acosh_equals_eager_above_one(lowers):
    lowers(torch.acosh, torch.rand(4, 6) + 1.05)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shapes", [((4, 6), (4, 6)), ((4, 6), (6,)), ((4, 1), (1, 6)), ((3,), ())])
def test_binary_equals_eager(lowers, shapes, dtype):
    a, b = (torch.rand(shape).to(dtype) + 0.5 for shape in shapes)
    lowers({str(op): op for op in BINARY}, a, b)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers_stay_integers(lowers, dtype):
    a = torch.randint(-9, 9, (4, 6), dtype=dtype)
    ops = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)
    lowers({str(op): op for op in ops}, a, a.flip(0))


def test_floor_division_of_integers_floors(lowers):
    lowers(lambda x: (x // 3, x // -3), torch.arange(-9, 9))


def test_remainder_of_integers_has_the_sign_of_the_divisor(lowers):
    lowers(lambda x: (x % 3, x % -3), torch.arange(-9, 9))


def test_rest_by_a_power_of_two_is_exact_of_any_quotient(lowers):
    found = [123456789.0, 1e10, -1e10, 3e38, -3e38, 5.75, -5.75, 1e-30, math.inf, math.nan]
    rests = {
        f"{op.__name__} by {divisor}": lambda x, op=op, divisor=divisor: op(x, divisor)
        for op in (torch.fmod, torch.remainder)
        for divisor in (1, 2.0, -1024)
    }
    lowers(rests, torch.tensor(found), tolerance=0)


def test_whole_quotient_by_a_power_of_two_is_exact(lowers):
    found = [3e38, -3e38, 5.75, -5.75, 0.125, -0.125, 1e10, math.inf, -math.inf, math.nan]
    quotients = {
        f"{mode} by {divisor}": lambda x, mode=mode, divisor=divisor: torch.div(
            x, divisor, rounding_mode=mode
        )
        for mode in ("floor", "trunc")
        for divisor in (2, -0.25, 1024.0)
    }
    lowers(quotients, torch.tensor(found), tolerance=0)


def test_whole_quotient_of_floats_by_other_numbers_is_eager(compiled):
    x = torch.arange(1, 1001) / 10
    functions = {
        "floor": lambda x: x // 0.1,
        "trunc": lambda x: torch.div(x, 0.1, rounding_mode="trunc"),
        "tensor": lambda x: torch.floor_divide(x, torch.full_like(x, 0.1)),
    }
    fast = compiled(lambda x: [function(x) for function in functions.values()])
    for result, function in zip(fast(x), functions.values(), strict=True):
        assert torch.equal(result, function(x))
    assert sum("div" in one for one in fast.eager_ops) == 3


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_lerp_of_infinities_equals_eager(lowers, dtype):
    values = torch.tensor([math.inf, -math.inf, math.nan, 0.0, 1.0, -2.5])
    start, end = (
        axis.reshape(-1).to(dtype) for axis in torch.meshgrid(values, values, indexing="ij")
    )
    weights = (0, 1, 0.3, 0.5, 0.7, -1.0, 2.0)
    lowers({str(w): lambda a, b, w=w: torch.lerp(a, b, w) for w in weights}, start, end)


@pytest.mark.parametrize("op", [torch.fmod, torch.remainder], ids=["fmod", "remainder"])
def test_rest_of_floats_by_other_numbers_is_eager(compiled, op):
    harmless, large = torch.rand(4), torch.tensor([123456789.0, 1e10, -1e10, 3e38])
    divisors = (7.0, 3, 0.5, math.inf)
    fast = compiled(lambda x: [op(x * 1, divisor) for divisor in divisors])
    for values in (harmless, large):
        for result, divisor in zip(fast(values), divisors, strict=True):
            assert torch.equal(result, op(values, divisor))
    assert sum(one.startswith(f"aten.{op.__name__}") for one in fast.eager_ops) == len(divisors)


def test_integer_division_gives_floats(lowers):
    lowers(lambda x, y: x / y, torch.arange(1, 7), torch.arange(2, 8))


WITH_NUMBERS = {
    "x+1": lambda x: x + 1,
    "x*2.5": lambda x: x * 2.5,
    "1-x": lambda x: 1 - x,
    "x**2": lambda x: x**2,
    "x.abs()**1.7": lambda x: x.abs() ** 1.7,
    "add(x,x,alpha=3)": lambda x: torch.add(x, x, alpha=3),
    "clamp(x,-0.5,0.5)": lambda x: torch.clamp(x, -0.5, 0.5),
    "clamp_min(x,0.1)": lambda x: torch.clamp_min(x, 0.1),
    "div(x,0.25,rounding_mode='floor')": lambda x: torch.div(x, 0.25, rounding_mode="floor"),
    "div(x,-2,rounding_mode='trunc')": lambda x: torch.div(x, -2, rounding_mode="trunc"),
    "addcmul(x,x,x,value=0.5)": lambda x: torch.addcmul(x, x, x, value=0.5),
    "lerp(x,x*2,0.25)": lambda x: torch.lerp(x, x * 2, 0.25),
    "gelu(x,approximate='tanh')": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "softplus(x,beta=2,threshold=0.5)": lambda x: torch.nn.functional.softplus(
        x, beta=2, threshold=0.5
    ),
    "elu(x,alpha=0.7)": lambda x: torch.nn.functional.elu(x, alpha=0.7),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scalar_arguments_keep_the_dtype(lowers, dtype):
    lowers(WITH_NUMBERS, torch.randn(4, 6).to(dtype))


def test_mixed_dtypes_are_promoted(lowers):
    found = lowers(lambda x, y: x + y, torch.arange(6), torch.randn(6))
    assert found.results[0].dtype is torch.float32


def test_a_float_number_promotes_integers(lowers):
    lowers(lambda x: x * 0.5, torch.arange(6))


def test_bool_sums_are_logic(lowers):
    a = torch.tensor([True, False, True])
    lowers(lambda x, y: (x + y, x * y), a, a.flip(0))


GRADIENTS = {
    "aten.sigmoid_backward(g,y)": lambda g, y: aten.sigmoid_backward(g, y),
    "aten.tanh_backward(g,y)": lambda g, y: aten.tanh_backward(g, y),
    "aten.threshold_backward(g,y,0)": lambda g, y: aten.threshold_backward(g, y, 0),
}


def test_gradients_equal_eager(lowers):
    lowers(GRADIENTS, torch.randn(4, 6), torch.rand(4, 6) - 0.5)


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


def test_small_numbers_keep_their_digits(lowers):
    small = torch.tensor([1e-8, -1e-8, 1e-4, -3e-4, 0.3, -0.49, 0.5])
    lowers(
        {"log1p": lambda x: torch.log1p(x) / x, "expm1": lambda x: torch.expm1(x) / x},
        small,
        tolerance=1e-6,
    )


def test_log_sigmoid_of_large_numbers_is_finite(lowers):
    x = torch.tensor([-100.0, -3.0, 0.0, 2.0, 90.0])
    lowers(torch.nn.functional.logsigmoid, x, whole=True)


COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


def named(*names):
    return {name: getattr(torch, name) for name in names}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_comparison_equals_eager(lowers, dtype):
    a = torch.randint(0, 3, (4, 6)).to(dtype)
    lowers(named(*COMPARISONS), a, a.flip(0))


def test_comparison_with_a_number_equals_eager(lowers):
    def with_numbers(op):
        return lambda x: (op(x, 1), op(x, 1.5))

    ops = {name: with_numbers(op) for name, op in named(*COMPARISONS).items()}
    lowers(ops, torch.arange(4))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64], ids=str)
def test_logic_equals_eager(lowers, dtype):
    a = torch.tensor([0, 0, 1, 1]).to(dtype)
    b = torch.tensor([0, 1, 0, 1]).to(dtype)
    lowers(named("logical_and", "logical_or", "logical_xor"), a, b)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32], ids=str)
def test_bits_equal_eager(lowers, dtype):
    a = torch.randint(0, 2 if dtype is torch.bool else 99, (8,)).to(dtype)
    lowers(named("bitwise_and", "bitwise_or", "bitwise_xor"), a, a.flip(0))


def test_negations_equal_eager(lowers):
    lowers(lambda x: (~x, torch.logical_not(x)), torch.tensor([True, False]))
    lowers(lambda x: ~x, torch.arange(-3, 3))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64], ids=str
)
def test_where_broadcasts_and_promotes(lowers, dtype):
    mask = torch.tensor([[True], [False], [True]])
    lowers(lambda c, x: torch.where(c, x, 0), mask, torch.arange(12).reshape(3, 4).to(dtype))


def test_masked_fill_equals_eager(lowers):
    lowers(lambda x, c: x.masked_fill(c, -1.5), torch.randn(3, 4), torch.rand(3, 4) > 0.5)


def test_nan_and_infinity_are_seen(lowers):
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    lowers(lambda x: (x.isnan(), x.isinf()), x)
