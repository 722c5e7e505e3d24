"""Converters of elementwise calls and comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch

from npu_compiler.lowering import nan
from npu_compiler.lowering.context import Context, Operand
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

aten = torch.ops.aten


def _scaled(ctx: Context, other: Operand, alpha: Any, dtype: torch.dtype) -> ov.Output:
    value = ctx.get(other, dtype)
    if alpha == 1 and not isinstance(alpha, torch.fx.Node):
        return value
    return ops.multiply(value, ctx.get(alpha, dtype)).output(0)


@converter(aten.add.Tensor, aten.add.Scalar)
def convert_add(ctx: Context, self: Operand, other: Operand, alpha: Any) -> Any:
    dtype = ctx.out_dtype()
    if dtype is torch.bool:
        return ops.logical_or(ctx.get(self), ctx.get(other, dtype))
    return ops.add(ctx.get(self, dtype), _scaled(ctx, other, alpha, dtype))


@converter(aten.sub.Tensor, aten.sub.Scalar)
def convert_sub(ctx: Context, self: Operand, other: Operand, alpha: Any) -> Any:
    dtype = ctx.out_dtype()
    return ops.subtract(ctx.get(self, dtype), _scaled(ctx, other, alpha, dtype))


@converter(aten.rsub.Tensor, aten.rsub.Scalar)
def convert_rsub(ctx: Context, self: Operand, other: Operand, alpha: Any) -> Any:
    dtype = ctx.out_dtype()
    return ops.subtract(ctx.get(other, dtype), _scaled(ctx, self, alpha, dtype))


@converter(aten.mul.Tensor, aten.multiply.Tensor, aten.mul.Scalar)
def convert_mul(ctx: Context, self: Operand, other: Operand) -> Any:
    dtype = ctx.out_dtype()
    if dtype is torch.bool:
        return ops.logical_and(ctx.get(self), ctx.get(other, dtype))
    return ops.multiply(ctx.get(self, dtype), ctx.get(other, dtype))


@converter(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def convert_div(ctx: Context, self: Operand, other: Operand) -> Any:
    dtype = ctx.out_dtype()
    return ops.divide(ctx.get(self, dtype), ctx.get(other, dtype))


@converter(aten.div.Tensor_mode, aten.div.Scalar_mode)
def convert_div_mode(ctx: Context, self: Operand, other: Operand, rounding_mode: Any) -> Any:
    if rounding_mode == "floor":
        return _floor_divide(ctx, self, other)
    dtype = ctx.out_dtype()
    if rounding_mode is None:
        return ops.divide(ctx.get(self, dtype), ctx.get(other, dtype))
    if not dtype.is_floating_point:
        ctx.refuse("truncating division of integers has no counterpart")
    work = torch.float32  # as in _floor_divide
    quotient = ops.divide(ctx.get(self, work), ctx.get(other, work))
    whole = ops.floor(ops.abs(quotient))
    return ctx.convert(ops.multiply(ops.sign(quotient), whole).output(0), dtype)


@converter(aten.floor_divide.default)
def convert_floor_divide(ctx: Context, self: Operand, other: Operand) -> Any:
    return _floor_divide(ctx, self, other)


def _floor_divide(ctx: Context, self: Operand, other: Operand) -> Any:
    dtype = ctx.out_dtype()
    if dtype.is_floating_point:
        # In float32, because a quotient that is rounded up to a whole number gives another floor.
        work = torch.float32
        a, b = ctx.get(self, work), ctx.get(other, work)
        quotient = ops.floor(ops.divide(a, b)).output(0)
        if nan.is_exact(ctx):
            is_infinite = [nan.is_infinite(ctx, ctx.get(side, dtype)) for side in (self, other)]
            quotient = _floored_beyond(ctx, a, b, is_infinite, quotient)
        return ctx.convert(quotient, dtype)
    a, b = ctx.get(self, dtype), ctx.get(other, dtype)
    # The CPU plugin's integer division truncates; subtracting the floored remainder first makes
    # the division exact.
    return ops.divide(ops.subtract(a, ops.floor_mod(a, b)), b)


def _floored_beyond(
    ctx: Context, a: ov.Output, b: ov.Output, is_infinite: list[ov.Output], quotient: ov.Output
) -> ov.Output:
    """Returns the floored quotients of infinities as torch has them, by way of a remainder."""
    work = torch.float32
    zero = ctx.number(0, work)
    lost = ops.logical_and(is_infinite[0], ops.not_equal(b, zero))
    below = ops.logical_and(is_infinite[1], ops.less(ops.multiply(a, b), zero))
    value = ops.select(below, ctx.number(-1, work), quotient).output(0)
    # As nan.infinity, a NaN that is a constant stays in float16 where the result is.
    kept = torch.float16 if ctx.out_dtype() is torch.float16 else work
    return ops.select(lost, ctx.number(math.nan, kept), ctx.convert(value, kept)).output(0)


@converter(aten.remainder.Scalar, aten.remainder.Tensor)
def convert_remainder(ctx: Context, self: Operand, other: Operand) -> Any:
    dtype = ctx.out_dtype()
    _check_divisor(ctx, other, dtype)
    return ops.floor_mod(ctx.get(self, dtype), ctx.get(other, dtype))


@converter(aten.fmod.Scalar, aten.fmod.Tensor)
def convert_fmod(ctx: Context, self: Operand, other: Operand) -> Any:
    dtype = ctx.out_dtype()
    _check_divisor(ctx, other, dtype)
    return ops.mod(ctx.get(self, dtype), ctx.get(other, dtype))


def _check_divisor(ctx: Context, other: Operand, dtype: torch.dtype) -> None:
    """Refuses a float's rest where the device's `a - trunc(a / b) * b` loses it to rounding.

    With a power of two from 1 on, no step rounds; with other divisors, the error grows with the
    quotient, which a comparison of other values would not show.
    """
    if not dtype.is_floating_point:
        return
    is_number = isinstance(other, (bool, int, float)) and math.isfinite(other)
    if not is_number or abs(other) < 1 or math.frexp(other)[0] not in (0.5, -0.5):
        ctx.refuse("a float's rest of a large quotient is exact for powers of two from 1 on alone")


@converter(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def convert_pow(ctx: Context, self: Operand, exponent: Operand) -> Any:
    dtype = ctx.out_dtype()
    base = ctx.get(self, dtype)
    if exponent == 2:
        return ops.multiply(base, base)
    if exponent == 3:
        return ops.multiply(ops.multiply(base, base), base)
    if exponent == 0.5:
        return ops.sqrt(base)
    if exponent == -1 and dtype.is_floating_point:
        return ops.divide(ctx.number(1, dtype), base)
    if not dtype.is_floating_point:
        ctx.refuse("integer powers other than 2 and 3 would be computed in float32")
    return ops.power(base, ctx.get(exponent, dtype))


@converter(aten.maximum.default, aten.max.other)
def convert_maximum(ctx: Context, self: Operand, other: Operand) -> Any:
    return _larger(ctx, ctx.get(self, ctx.out_dtype()), ctx.get(other, ctx.out_dtype()))


@converter(aten.minimum.default, aten.min.other)
def convert_minimum(ctx: Context, self: Operand, other: Operand) -> Any:
    return _smaller(ctx, ctx.get(self, ctx.out_dtype()), ctx.get(other, ctx.out_dtype()))


def _larger(ctx: Context, a: ov.Output, b: ov.Output) -> ov.Output:
    """The larger of two, and NaN where either is."""
    result = ops.maximum(a, b).output(0)
    if not nan.is_real(a) or not nan.is_exact(ctx):
        return result
    return nan.guarded(a, nan.guarded(b, result))


def _smaller(ctx: Context, a: ov.Output, b: ov.Output) -> ov.Output:
    """The smaller of two, and NaN where either is."""
    result = ops.minimum(a, b).output(0)
    if not nan.is_real(a) or not nan.is_exact(ctx):
        return result
    return nan.guarded(a, nan.guarded(b, result))


@converter(aten.logaddexp.default)
def convert_logaddexp(ctx: Context, self: Operand, other: Operand) -> Any:
    a, b = ctx.get(self, ctx.out_dtype()), ctx.get(other, ctx.out_dtype())
    # Equal infinities have no difference.
    apart = ops.negative(ops.abs(ops.subtract(a, b)))
    apart = ops.select(ops.equal(a, b), ctx.number(0, ctx.out_dtype()), apart)
    return ops.add(_larger(ctx, a, b), ops.softplus(apart))


@converter(aten.atan2.default)
def convert_atan2(ctx: Context, self: Operand, other: Operand) -> Any:
    ctx.refuse("atan2 has no counterpart")


@converter(aten.neg.default)
def convert_neg(ctx: Context, self: Operand) -> Any:
    dtype = ctx.out_dtype()
    value = ctx.get(self, dtype)
    if not dtype.is_floating_point:
        return ops.negative(value)
    # As a product, the CPU plugin finds rotary embeddings (OpenVINO 2026.4.1).
    return ops.multiply(value, ctx.number(-1.0, dtype))


def _unary(key: Any, make: Callable[[ov.Output], Any], *, floats_only: bool = True) -> None:
    """Registers an op of one operand, named after its overload."""

    def convert(ctx: Context, self: Operand) -> Any:
        dtype = ctx.out_dtype()
        value = ctx.get(self, dtype)
        if not floats_only and not dtype.is_floating_point and make in _ROUNDING:
            return value
        return make(value)

    convert.__name__ = f"convert_{str(key).split('.')[1]}"
    converter(key)(convert)


_ROUNDING = (ops.floor, ops.ceiling)

_unary(aten.abs.default, ops.abs)
_unary(aten.log.default, ops.log)
_unary(aten.sqrt.default, ops.sqrt)
_unary(aten.sin.default, ops.sin)
_unary(aten.cos.default, ops.cos)
_unary(aten.tan.default, ops.tan)
_unary(aten.asin.default, ops.asin)
_unary(aten.acos.default, ops.acos)
_unary(aten.atan.default, ops.atan)
_unary(aten.sinh.default, ops.sinh)
_unary(aten.cosh.default, ops.cosh)
_unary(aten.tanh.default, ops.tanh)
_unary(aten.asinh.default, ops.asinh)
_unary(aten.acosh.default, ops.acosh)
_unary(aten.atanh.default, ops.atanh)
_unary(aten.erf.default, ops.erf)
_unary(aten.sigmoid.default, ops.sigmoid)
_unary(aten.floor.default, ops.floor, floats_only=False)
_unary(aten.ceil.default, ops.ceiling, floats_only=False)


@converter(aten.exp.default)
def convert_exp(ctx: Context, self: Operand) -> Any:
    value = ctx.get(self, ctx.out_dtype())
    result = ops.exp(value).output(0)
    return nan.guarded(value, result) if nan.is_exact(ctx) else result


@converter(aten.relu.default)
def convert_relu(ctx: Context, self: Operand) -> Any:
    value = ctx.get(self)
    result = ops.relu(value).output(0)
    is_exact = nan.is_real(value) and nan.is_exact(ctx, is_fused=nan.is_behind_product(self))
    return nan.guarded(value, result) if is_exact else result


@converter(aten.sign.default)
def convert_sign(ctx: Context, self: Operand) -> Any:
    """The sign, and 0 of NaN as in torch."""
    value = ctx.get(self)
    result = ops.sign(value)
    if not nan.is_real(value):
        return result
    return ops.select(ops.not_equal(value, value), ctx.number(0, ctx.out_dtype()), result)


@converter(aten.round.default)
def convert_round(ctx: Context, self: Operand) -> Any:
    return ops.round(ctx.get(self), "half_to_even")


@converter(aten.trunc.default)
def convert_trunc(ctx: Context, self: Operand) -> Any:
    value = ctx.get(self)
    return ops.multiply(ops.sign(value), ops.floor(ops.abs(value)))


@converter(aten.rsqrt.default)
def convert_rsqrt(ctx: Context, self: Operand) -> Any:
    dtype = ctx.out_dtype()
    return ops.divide(ctx.number(1, dtype), ops.sqrt(ctx.get(self, dtype)))


@converter(aten.reciprocal.default)
def convert_reciprocal(ctx: Context, self: Operand) -> Any:
    dtype = ctx.out_dtype()
    return ops.divide(ctx.number(1, dtype), ctx.get(self, dtype))


@converter(aten.square.default)
def convert_square(ctx: Context, self: Operand) -> Any:
    value = ctx.get(self)
    return ops.multiply(value, value)


@converter(aten.log2.default, aten.log10.default)
def convert_log_of_base(ctx: Context, self: Operand) -> Any:
    dtype = ctx.out_dtype()
    base = 2 if "log2" in str(ctx.node.target) else 10
    return ops.multiply(ops.log(ctx.get(self, dtype)), ctx.number(1 / math.log(base), dtype))


@converter(aten.log1p.default)
def convert_log1p(ctx: Context, self: Operand) -> Any:
    dtype = ctx.out_dtype()
    value = ctx.get(self, dtype)
    one, two = ctx.number(1, dtype), ctx.number(2, dtype)
    # 2 atanh(x / (2 + x)) keeps the digits of a small x, log(1 + x) those of a large one.
    near = ops.multiply(two, ops.atanh(ops.divide(value, ops.add(two, value))))
    is_near = ops.less(ops.abs(value), ctx.number(0.5, dtype))
    return ops.select(is_near, near, ops.log(ops.add(one, value)))


@converter(aten.expm1.default)
def convert_expm1(ctx: Context, self: Operand) -> Any:
    dtype = ctx.out_dtype()
    value = ctx.get(self, dtype)
    # exp(x) - 1 = (exp(x) + 1) tanh(x / 2), which keeps the digits of a small x.
    half = ops.tanh(ops.multiply(value, ctx.number(0.5, dtype)))
    return ops.multiply(ops.add(ops.exp(value), ctx.number(1, dtype)), half)


@converter(aten.exp2.default)
def convert_exp2(ctx: Context, self: Operand) -> Any:
    dtype = ctx.out_dtype()
    power = ops.multiply(ctx.get(self, dtype), ctx.number(math.log(2), dtype)).output(0)
    result = ops.exp(power).output(0)
    return nan.guarded(power, result) if nan.is_exact(ctx) else result


@converter(aten.gelu.default)
def convert_gelu(ctx: Context, self: Operand, approximate: str) -> Any:
    return ops.gelu(ctx.get(self), "tanh" if approximate == "tanh" else "erf")


@converter(aten.silu.default)
def convert_silu(ctx: Context, self: Operand) -> Any:
    # The default factor of ops.swish is float32 whatever the operand's type.
    return ops.swish(ctx.get(self), ctx.number(1.0, ctx.out_dtype()))


@converter(aten.mish.default)
def convert_mish(ctx: Context, self: Operand) -> Any:
    return ops.mish(ctx.get(self))


@converter(aten.hardsigmoid.default)
def convert_hardsigmoid(ctx: Context, self: Operand) -> Any:
    value = ctx.get(self)
    result = ops.hsigmoid(value).output(0)
    return nan.guarded(value, result) if nan.is_exact(ctx) else result


@converter(aten.hardswish.default)
def convert_hardswish(ctx: Context, self: Operand) -> Any:
    return ops.hswish(ctx.get(self))


@converter(aten.elu.default)
def convert_elu(ctx: Context, self: Operand, alpha: Any, scale: Any, input_scale: Any) -> Any:
    if scale != 1 or input_scale != 1:
        dtype = ctx.out_dtype()
        value = ctx.get(self)
        inner = ops.multiply(value, ctx.number(input_scale, dtype)).output(0)
        negative = ops.multiply(
            ops.subtract(nan.exp(ctx, inner), ctx.number(1, dtype)), ctx.number(alpha, dtype)
        )
        is_positive = ops.greater(value, ctx.number(0, dtype))
        return ops.multiply(ops.select(is_positive, value, negative), ctx.number(scale, dtype))
    return ops.elu(ctx.get(self), float(alpha))


@converter(aten.leaky_relu.default)
def convert_leaky_relu(ctx: Context, self: Operand, negative_slope: Any) -> Any:
    return ops.prelu(ctx.get(self), ctx.number(negative_slope, ctx.out_dtype()))


@converter(aten._prelu_kernel.default)
def convert_prelu(ctx: Context, self: Operand, weight: Operand) -> Any:
    dtype = ctx.out_dtype()
    value = ctx.get(self)
    is_positive = ops.greater(value, ctx.number(0, dtype))
    return ops.select(is_positive, value, ops.multiply(value, ctx.get(weight, dtype)))


@converter(aten.softplus.default)
def convert_softplus(ctx: Context, self: Operand, beta: Any, threshold: Any) -> Any:
    dtype = ctx.out_dtype()
    value = ctx.get(self)
    scaled = ops.multiply(value, ctx.number(beta, dtype))
    soft = ops.divide(ops.softplus(scaled), ctx.number(beta, dtype))
    return ops.select(ops.greater(scaled, ctx.number(threshold, dtype)), value, soft)


@converter(aten.log_sigmoid.default)
def convert_log_sigmoid(ctx: Context, self: Operand) -> Any:
    return ops.negative(ops.softplus(ops.negative(ctx.get(self, ctx.out_dtype()))))


@converter(aten.hardtanh.default, aten.clamp.default)
def convert_clamp(ctx: Context, self: Operand, **bounds: Any) -> Any:
    low = bounds.get("min_", bounds.get("min_val"))
    high = bounds.get("max_", bounds.get("max_val"))
    dtype = ctx.out_dtype()
    source = value = ctx.get(self, dtype)
    given = [bound for bound in (low, high) if bound is not None]
    if any(isinstance(bound, float) and math.isnan(bound) for bound in given):
        return ops.add(value, ctx.number(math.nan, dtype))  # as in torch, whatever the value
    if low is not None:
        value = ops.maximum(value, ctx.get(low, dtype)).output(0)
    if high is not None:
        value = ops.minimum(value, ctx.get(high, dtype)).output(0)
    if not nan.is_real(source):
        return value
    if not nan.is_exact(ctx, is_fused=nan.is_behind_product(self)):
        return value
    for bound in given:
        if ctx.rank(bound):
            value = nan.guarded(ctx.get(bound, dtype), value)
    return nan.guarded(source, value)


@converter(aten.clamp.Tensor)
def convert_clamp_tensor(ctx: Context, self: Operand, min_: Any, max_: Any) -> Any:
    return convert_clamp(ctx, self, min_=min_, max_=max_)


@converter(aten.clamp_min.default, aten.clamp_min.Tensor)
def convert_clamp_min(ctx: Context, self: Operand, min_: Any) -> Any:
    return convert_clamp(ctx, self, min_=min_)


@converter(aten.clamp_max.default, aten.clamp_max.Tensor)
def convert_clamp_max(ctx: Context, self: Operand, max_: Any) -> Any:
    return convert_clamp(ctx, self, max_=max_)


@converter(aten.relu6.default)
def convert_relu6(ctx: Context, self: Operand) -> Any:
    return convert_clamp(ctx, self, min_=0, max_=6)


@converter(aten.logit.default)
def convert_logit(ctx: Context, self: Operand, eps: Any) -> Any:
    dtype = ctx.out_dtype()
    value = ctx.get(self, dtype)
    if eps is not None:
        low, high = ctx.number(eps, dtype), ctx.number(1 - eps, dtype)
        inside = ops.minimum(ops.maximum(value, low), high).output(0)
        value = nan.guarded(value, inside) if nan.is_exact(ctx) else inside
    return ops.log(ops.divide(value, ops.subtract(ctx.number(1, dtype), value)))


@converter(aten.addcmul.default)
def convert_addcmul(ctx: Context, self: Operand, tensor1: Any, tensor2: Any, value: Any) -> Any:
    dtype = ctx.out_dtype()
    product = ops.multiply(ctx.get(tensor1, dtype), ctx.get(tensor2, dtype)).output(0)
    if value != 1:
        product = ops.multiply(product, ctx.get(value, dtype)).output(0)
    return ops.add(ctx.get(self, dtype), product)


# torch defines it when it first traces an optimizer's step, so that it stands here by name.
@converter("prims.fma.default")
def convert_fma(ctx: Context, a: Operand, b: Operand, c: Operand) -> Any:
    """The product and the sum, which the device rounds apart."""
    dtype = ctx.out_dtype()
    return ops.add(ops.multiply(ctx.get(a, dtype), ctx.get(b, dtype)), ctx.get(c, dtype))


@converter(aten.addcdiv.default)
def convert_addcdiv(ctx: Context, self: Operand, tensor1: Any, tensor2: Any, value: Any) -> Any:
    dtype = ctx.out_dtype()
    quotient = ops.divide(ctx.get(tensor1, dtype), ctx.get(tensor2, dtype)).output(0)
    if value != 1:
        quotient = ops.multiply(quotient, ctx.get(value, dtype)).output(0)
    return ops.add(ctx.get(self, dtype), quotient)


@converter(aten.lerp.Scalar)
def convert_lerp(ctx: Context, self: Operand, end: Operand, weight: Any) -> Any:
    dtype = ctx.out_dtype()
    start = ctx.get(self, dtype)
    step = ops.multiply(ops.subtract(ctx.get(end, dtype), start), ctx.get(weight, dtype))
    return ops.add(start, step)


@converter(aten.sigmoid_backward.default)
def convert_sigmoid_backward(ctx: Context, grad_output: Operand, output: Operand) -> Any:
    y = ctx.get(output)
    slope = ops.multiply(y, ops.subtract(ctx.number(1, ctx.out_dtype()), y))
    return ops.multiply(ctx.get(grad_output), slope)


@converter(aten.tanh_backward.default)
def convert_tanh_backward(ctx: Context, grad_output: Operand, output: Operand) -> Any:
    y = ctx.get(output)
    slope = ops.subtract(ctx.number(1, ctx.out_dtype()), ops.multiply(y, y))
    return ops.multiply(ctx.get(grad_output), slope)


@converter(aten.threshold_backward.default)
def convert_threshold_backward(
    ctx: Context, grad_output: Operand, self: Operand, threshold: Any
) -> Any:
    dtype = ctx.out_dtype()
    # What is no number is not closed: its gradient passes, as in torch.
    is_closed = ops.less_equal(ctx.get(self), ctx.number(threshold, dtype))
    return ops.select(is_closed, ctx.number(0, dtype), ctx.get(grad_output))


# Arithmetic is in elementwise.py, any and all in reductions.py.


def _comparison(name: str, make: Callable[..., Any]) -> None:
    packet = getattr(aten, name)

    def convert(ctx: Context, self: Operand, other: Operand) -> Any:
        dtype = ctx.result_type(self, other)
        if dtype is torch.bool and name not in ("eq", "ne"):
            dtype = torch.int32
        if nan.is_lost(other, dtype):
            dtype = torch.float32
        return make(ctx.get(self, dtype), ctx.get(other, dtype))

    convert.__name__ = f"convert_{name}"
    converter(packet.Tensor, packet.Scalar)(convert)


_comparison("eq", ops.equal)
_comparison("ne", ops.not_equal)
_comparison("lt", ops.less)
_comparison("le", ops.less_equal)
_comparison("gt", ops.greater)
_comparison("ge", ops.greater_equal)


@converter(aten.logical_and.default)
def convert_logical_and(ctx: Context, self: Operand, other: Operand) -> Any:
    return ops.logical_and(ctx.get(self, torch.bool), ctx.get(other, torch.bool))


@converter(aten.logical_or.default)
def convert_logical_or(ctx: Context, self: Operand, other: Operand) -> Any:
    return ops.logical_or(ctx.get(self, torch.bool), ctx.get(other, torch.bool))


@converter(aten.logical_xor.default)
def convert_logical_xor(ctx: Context, self: Operand, other: Operand) -> Any:
    return ops.logical_xor(ctx.get(self, torch.bool), ctx.get(other, torch.bool))


@converter(aten.logical_not.default)
def convert_logical_not(ctx: Context, self: Operand) -> Any:
    return ops.logical_not(ctx.get(self, torch.bool))


def _bitwise(name: str, logical: Callable[..., Any], bits: Callable[..., Any]) -> None:
    packet = getattr(aten, name)

    def convert(ctx: Context, self: Operand, other: Operand) -> Any:
        dtype = ctx.out_dtype()
        make = logical if dtype is torch.bool else bits
        return make(ctx.get(self, dtype), ctx.get(other, dtype))

    convert.__name__ = f"convert_{name}"
    converter(packet.Tensor, packet.Scalar)(convert)


_bitwise("bitwise_and", ops.logical_and, ops.bitwise_and)
_bitwise("bitwise_or", ops.logical_or, ops.bitwise_or)
_bitwise("bitwise_xor", ops.logical_xor, ops.bitwise_xor)
converter(aten.__and__.Tensor, aten.__and__.Scalar)(
    lambda ctx, self, other: (
        ops.logical_and if ctx.out_dtype() is torch.bool else ops.bitwise_and
    )(ctx.get(self, ctx.out_dtype()), ctx.get(other, ctx.out_dtype()))
)
converter(aten.__or__.Tensor, aten.__or__.Scalar)(
    lambda ctx, self, other: (ops.logical_or if ctx.out_dtype() is torch.bool else ops.bitwise_or)(
        ctx.get(self, ctx.out_dtype()), ctx.get(other, ctx.out_dtype())
    )
)


@converter(aten.bitwise_not.default)
def convert_bitwise_not(ctx: Context, self: Operand) -> Any:
    value = ctx.get(self)
    return ops.logical_not(value) if ctx.out_dtype() is torch.bool else ops.bitwise_not(value)


@converter(aten.isnan.default)
def convert_isnan(ctx: Context, self: Operand) -> Any:
    value = ctx.get(self)
    return ops.not_equal(value, value)


@converter(aten.isinf.default)
def convert_isinf(ctx: Context, self: Operand) -> Any:
    return nan.is_infinite(ctx, ctx.get(self))


@converter(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def convert_where(ctx: Context, condition: Operand, self: Operand, other: Operand) -> Any:
    return _selected(ctx, condition, self, other)


def _selected(ctx: Context, condition: Operand, taken: Operand, other: Operand) -> ov.Output:
    dtype = ctx.out_dtype()
    work = torch.float32 if any(nan.is_lost(side, dtype) for side in (taken, other)) else dtype
    sides = (ctx.get(taken, work), ctx.get(other, work))
    return ctx.convert(ops.select(ctx.get(condition, torch.bool), *sides).output(0), dtype)


@converter(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def convert_masked_fill(ctx: Context, self: Operand, mask: Operand, value: Operand) -> Any:
    return _selected(ctx, mask, value, self)
