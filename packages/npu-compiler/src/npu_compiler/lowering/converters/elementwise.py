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


def _elementwise(*keys: Any, dtype: torch.dtype | None = None) -> Callable[[Any], Any]:
    """Registers `form(ctx, *operands)`; operands are cast to the result's dtype, or to another."""

    def register(form: Callable[..., Any]) -> Callable[..., Any]:
        def convert(ctx: Context, **operands: Operand) -> Any:
            wanted = dtype or ctx.out_dtype()
            return form(ctx, *(ctx.get(operand, wanted) for operand in operands.values()))

        convert.__name__ = f"convert_{str(keys[0]).split('.')[1]}"
        converter(*keys)(convert)
        return form

    return register


def _number(ctx: Context, value: float) -> ov.Output:
    return ctx.number(value, ctx.out_dtype())


def _exp(ctx: Context, value: ov.Output) -> ov.Output:
    return _nan_where(ctx, value, ops.exp(value).output(0))


def _nan_where(ctx: Context, source: ov.Output, result: ov.Output) -> ov.Output:
    return nan.guarded(source, result) if nan.is_exact(ctx) else result


def _larger(ctx: Context, a: ov.Output, b: ov.Output) -> ov.Output:
    return _nan_of_either(ctx, a, b, ops.maximum(a, b).output(0))


def _smaller(ctx: Context, a: ov.Output, b: ov.Output) -> ov.Output:
    return _nan_of_either(ctx, a, b, ops.minimum(a, b).output(0))


def _nan_of_either(ctx: Context, a: ov.Output, b: ov.Output, result: ov.Output) -> ov.Output:
    is_exact = nan.is_real(a) and nan.is_exact(ctx)
    return nan.guarded(a, nan.guarded(b, result)) if is_exact else result


# Ops -> forms with operands in the result's dtype.
_PLAIN: dict[Any, Callable[..., Any]] = {
    aten.abs.default: ops.abs,
    aten.log.default: ops.log,
    aten.sqrt.default: ops.sqrt,
    aten.sin.default: ops.sin,
    aten.cos.default: ops.cos,
    aten.tan.default: ops.tan,
    aten.asin.default: ops.asin,
    aten.acos.default: ops.acos,
    aten.atan.default: ops.atan,
    aten.sinh.default: ops.sinh,
    aten.cosh.default: ops.cosh,
    aten.tanh.default: ops.tanh,
    aten.asinh.default: ops.asinh,
    aten.acosh.default: ops.acosh,
    aten.atanh.default: ops.atanh,
    aten.erf.default: ops.erf,
    aten.sigmoid.default: ops.sigmoid,
    aten.mish.default: ops.mish,
    aten.hardswish.default: ops.hswish,
    aten.leaky_relu.default: ops.prelu,
    aten.div.Tensor: ops.divide,
    aten.div.Scalar: ops.divide,
    aten.true_divide.Tensor: ops.divide,
    aten.round.default: lambda x: ops.round(x, "half_to_even"),
    aten.trunc.default: lambda x: ops.multiply(ops.sign(x), ops.floor(ops.abs(x))),
    aten.square.default: lambda x: ops.multiply(x, x),
    aten.log_sigmoid.default: lambda x: ops.negative(ops.softplus(ops.negative(x))),
    # torch defines this op when it first traces an optimizer's step, so it is registered by name.
    # The device rounds the product and the sum separately.
    "prims.fma.default": lambda a, b, c: ops.add(ops.multiply(a, b), c),
}
# The same for forms with the context as argument.
_WITH_CONTEXT: dict[Any, Callable[..., Any]] = {
    aten.maximum.default: _larger,
    aten.max.other: _larger,
    aten.minimum.default: _smaller,
    aten.min.other: _smaller,
    aten.exp.default: _exp,
    aten.exp2.default: lambda ctx, x: _exp(
        ctx, ops.multiply(x, _number(ctx, math.log(2))).output(0)
    ),
    aten.floor.default: lambda ctx, x: ops.floor(x) if nan.is_real(x) else x,
    aten.ceil.default: lambda ctx, x: ops.ceiling(x) if nan.is_real(x) else x,
    aten.rsqrt.default: lambda ctx, x: ops.divide(_number(ctx, 1), ops.sqrt(x)),
    aten.reciprocal.default: lambda ctx, x: ops.divide(_number(ctx, 1), x),
    aten.log2.default: lambda ctx, x: ops.multiply(ops.log(x), _number(ctx, 1 / math.log(2))),
    aten.log10.default: lambda ctx, x: ops.multiply(ops.log(x), _number(ctx, 1 / math.log(10))),
    # The default factor of ops.swish is float32 for every operand type.
    aten.silu.default: lambda ctx, x: ops.swish(x, _number(ctx, 1.0)),
    aten.hardsigmoid.default: lambda ctx, x: _nan_where(ctx, x, ops.hsigmoid(x).output(0)),
    aten.sigmoid_backward.default: lambda ctx, grad, y: ops.multiply(
        grad, ops.multiply(y, ops.subtract(_number(ctx, 1), y))
    ),
    aten.tanh_backward.default: lambda ctx, grad, y: ops.multiply(
        grad, ops.subtract(_number(ctx, 1), ops.multiply(y, y))
    ),
}
_OF_BOOLS = {
    aten.logical_and.default: ops.logical_and,
    aten.logical_or.default: ops.logical_or,
    aten.logical_xor.default: ops.logical_xor,
    aten.logical_not.default: ops.logical_not,
}


for _key, _form in _WITH_CONTEXT.items():
    _elementwise(_key)(_form)
for _table, _dtype in ((_PLAIN, None), (_OF_BOOLS, torch.bool)):
    for _key, _form in _table.items():
        _elementwise(_key, dtype=_dtype)(lambda ctx, *operands, form=_form: form(*operands))


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


@converter(aten.lerp.Scalar)
def convert_lerp(ctx: Context, self: Operand, end: Operand, weight: Any) -> Any:
    """Interpolates linearly, from the nearer end as in torch.

    The end matters for infinities: from 0 to inf with weight 1 is NaN, since inf times 0 is NaN.
    """
    if not isinstance(weight, (bool, int, float)):
        ctx.refuse("a weight that is not constant")
    work = torch.float32  # torch computes half precision in float32 too
    first, last = ctx.get(self, work), ctx.get(end, work)
    way = ops.subtract(last, first)
    if abs(weight) < 0.5:
        result = ops.add(first, ops.multiply(way, ctx.number(weight, work)))
    else:
        result = ops.subtract(last, ops.multiply(way, ctx.number(1 - weight, work)))
    return ctx.convert(result.output(0), ctx.out_dtype())


@converter(aten.div.Tensor_mode, aten.div.Scalar_mode)
def convert_div_mode(ctx: Context, self: Operand, other: Operand, rounding_mode: Any) -> Any:
    if rounding_mode == "floor":
        return convert_floor_divide(ctx, self, other)
    dtype = ctx.out_dtype()
    if rounding_mode is None:
        return ops.divide(ctx.get(self, dtype), ctx.get(other, dtype))
    if not dtype.is_floating_point:
        ctx.refuse("truncating division of integers has no counterpart")
    _check_quotient(ctx, other)
    work = torch.float32  # see convert_floor_divide
    quotient = ops.divide(ctx.get(self, work), ctx.get(other, work))
    whole = ops.floor(ops.abs(quotient))
    return ctx.convert(ops.multiply(ops.sign(quotient), whole).output(0), dtype)


@converter(aten.floor_divide.default)
def convert_floor_divide(ctx: Context, self: Operand, other: Operand) -> Any:
    dtype = ctx.out_dtype()
    if dtype.is_floating_point:
        _check_quotient(ctx, other)
        # In float32, because a quotient rounded up to an integer changes the floor.
        work = torch.float32
        quotient = ops.floor(ops.divide(ctx.get(self, work), ctx.get(other, work))).output(0)
        if nan.is_exact(ctx):
            # torch computes this through a remainder, which is NaN for infinities.
            is_lost = nan.is_infinite(ctx, ctx.get(self, dtype))
            # Like nan.infinity, a constant NaN stays in float16 if the result is.
            kept = torch.float16 if dtype is torch.float16 else work
            nothing = ctx.number(math.nan, kept)
            quotient = ops.select(is_lost, nothing, ctx.convert(quotient, kept)).output(0)
        return ctx.convert(quotient, dtype)
    a, b = ctx.get(self, dtype), ctx.get(other, dtype)
    # Integer division of the CPU plugin truncates; subtracting the floored remainder first makes it
    # exact.
    return ops.divide(ops.subtract(a, ops.floor_mod(a, b)), b)


def _check_quotient(ctx: Context, other: Operand) -> None:
    """Refuses integral float quotients that the device rounds before truncation.

    1.0 // 0.1 is 9 in torch, since 0.1 is more than a tenth. Powers of two divide exactly.
    """
    if not _is_power_of_two(other):
        ctx.refuse("integral float quotients are exact only for powers of two")


def _is_power_of_two(number: Operand) -> bool:
    """Whether an operand is plus or minus a power of two with a normal reciprocal."""
    if not isinstance(number, (bool, int, float)) or not 2.0**-100 <= abs(number) <= 2.0**100:
        return False
    return math.frexp(number)[0] in (0.5, -0.5)


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
    """Refuses float remainders that the device's `a - trunc(a / b) * b` loses to rounding.

    With powers of two from 1 up, no step rounds. With other divisors the error grows with the
    quotient, so verification with small values would not find it.
    """
    if not dtype.is_floating_point:
        return
    if not _is_power_of_two(other) or abs(other) < 1:
        ctx.refuse("float remainders are exact only for powers of two from 1 up")


@converter(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def convert_pow(ctx: Context, self: Operand, exponent: Operand) -> Any:
    dtype = ctx.out_dtype()
    base = ctx.get(self, dtype)
    if exponent == 2:
        return ops.multiply(base, base)
    if exponent == 3:
        return ops.multiply(ops.multiply(base, base), base)
    if exponent == 0.5:
        if dtype is not torch.float16:
            return ops.sqrt(base)
        # torch computes this type by C's pow, which gives inf for -inf and 0 for -0.
        is_lowest = ops.equal(base, ctx.number(-math.inf, dtype))
        root = ops.add(ops.sqrt(base), ctx.number(0, dtype))
        return ops.select(is_lowest, ctx.number(math.inf, dtype), root)
    if exponent == -1 and dtype.is_floating_point:
        return ops.divide(ctx.number(1, dtype), base)
    if not dtype.is_floating_point:
        ctx.refuse("integer powers other than 2 and 3 would be computed in float32")
    return ops.power(base, ctx.get(exponent, dtype))


@_elementwise(aten.logaddexp.default)
def _logaddexp(ctx: Context, a: ov.Output, b: ov.Output) -> Any:
    # The difference of equal infinities is NaN.
    apart = ops.negative(ops.abs(ops.subtract(a, b)))
    apart = ops.select(ops.equal(a, b), _number(ctx, 0), apart)
    return ops.add(_larger(ctx, a, b), ops.softplus(apart))


@converter(aten.atan2.default)
def convert_atan2(ctx: Context, self: Operand, other: Operand) -> Any:
    ctx.refuse("atan2 has no counterpart")


@_elementwise(aten.neg.default)
def _negated(ctx: Context, value: ov.Output) -> Any:
    if not nan.is_real(value):
        return ops.negative(value)
    # The CPU plugin recognizes rotary embeddings only with a product (OpenVINO 2026.4.1).
    return ops.multiply(value, _number(ctx, -1.0))


@converter(aten.relu.default)
def convert_relu(ctx: Context, self: Operand) -> Any:
    value = ctx.get(self)
    result = ops.relu(value).output(0)
    is_exact = nan.is_real(value) and nan.is_exact(ctx, is_fused=nan.is_behind_product(self))
    return nan.guarded(value, result) if is_exact else result


@_elementwise(aten.sign.default)
def _sign(ctx: Context, value: ov.Output) -> Any:
    """Returns the sign, and 0 for NaN as in torch."""
    result = ops.sign(value)
    if not nan.is_real(value):
        return result
    return ops.select(ops.not_equal(value, value), _number(ctx, 0), result)


@_elementwise(aten.log1p.default)
def _log1p(ctx: Context, value: ov.Output) -> Any:
    one, two = _number(ctx, 1), _number(ctx, 2)
    # 2 atanh(x / (2 + x)) is accurate for small x, log(1 + x) for large x.
    near = ops.multiply(two, ops.atanh(ops.divide(value, ops.add(two, value))))
    is_near = ops.less(ops.abs(value), _number(ctx, 0.5))
    return ops.select(is_near, near, ops.log(ops.add(one, value)))


@_elementwise(aten.expm1.default)
def _expm1(ctx: Context, value: ov.Output) -> Any:
    # exp(x) - 1 = (exp(x) + 1) tanh(x / 2), which is accurate for small x.
    half = ops.tanh(ops.multiply(value, _number(ctx, 0.5)))
    return ops.multiply(ops.add(ops.exp(value), _number(ctx, 1)), half)


@converter(aten.gelu.default)
def convert_gelu(ctx: Context, self: Operand, approximate: str) -> Any:
    return ops.gelu(ctx.get(self), "tanh" if approximate == "tanh" else "erf")


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


@_elementwise(aten._prelu_kernel.default)
def _prelu(ctx: Context, value: ov.Output, weight: ov.Output) -> Any:
    is_positive = ops.greater(value, _number(ctx, 0))
    return ops.select(is_positive, value, ops.multiply(value, weight))


@_elementwise(aten.softplus.default)
def _softplus(ctx: Context, value: ov.Output, beta: ov.Output, threshold: ov.Output) -> Any:
    scaled = ops.multiply(value, beta)
    soft = ops.divide(ops.softplus(scaled), beta)
    return ops.select(ops.greater(scaled, threshold), value, soft)


@converter(
    aten.hardtanh.default,
    aten.clamp.default,
    aten.clamp.Tensor,
    aten.clamp_min.default,
    aten.clamp_min.Tensor,
    aten.clamp_max.default,
    aten.clamp_max.Tensor,
)
def convert_clamp(ctx: Context, self: Operand, **bounds: Any) -> Any:
    low = bounds.get("min_", bounds.get("min_val"))
    high = bounds.get("max_", bounds.get("max_val"))
    dtype = ctx.out_dtype()
    source = value = ctx.get(self, dtype)
    given = [bound for bound in (low, high) if bound is not None]
    if any(isinstance(bound, float) and math.isnan(bound) for bound in given):
        return ops.add(value, ctx.number(math.nan, dtype))  # as in torch, for every value
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


@converter(aten.addcmul.default, aten.addcdiv.default)
def convert_addcmul(ctx: Context, self: Operand, tensor1: Any, tensor2: Any, value: Any) -> Any:
    dtype = ctx.out_dtype()
    make = ops.multiply if ctx.node.target is aten.addcmul.default else ops.divide
    term = make(ctx.get(tensor1, dtype), ctx.get(tensor2, dtype)).output(0)
    if value != 1:
        term = ops.multiply(term, ctx.get(value, dtype)).output(0)
    return ops.add(ctx.get(self, dtype), term)


@_elementwise(aten.threshold_backward.default)
def _threshold_backward(
    ctx: Context, grad_output: ov.Output, value: ov.Output, threshold: ov.Output
) -> Any:
    # NaN counts as open: its gradient passes, as in torch.
    is_closed = ops.less_equal(value, threshold)
    return ops.select(is_closed, _number(ctx, 0), grad_output)


_COMPARISONS = {
    "eq": ops.equal,
    "ne": ops.not_equal,
    "lt": ops.less,
    "le": ops.less_equal,
    "gt": ops.greater,
    "ge": ops.greater_equal,
}


def _register_comparison(name: str, make: Callable[..., Any]) -> None:
    packet = getattr(aten, name)

    @converter(packet.Tensor, packet.Scalar)
    def convert(ctx: Context, self: Operand, other: Operand) -> Any:
        dtype = ctx.result_type(self, other)
        if dtype is torch.bool and name not in ("eq", "ne"):
            dtype = torch.int32
        if nan.is_lost(other, dtype):
            dtype = torch.float32
        if dtype is torch.float16:
            return make(_as_half(ctx, self), _as_half(ctx, other))
        return make(ctx.get(self, dtype), ctx.get(other, dtype))


def _as_half(ctx: Context, operand: Operand) -> ov.Output:
    """Returns a value in float16, infinite on overflow."""
    if isinstance(operand, torch.fx.Node) and ctx.dtype(operand) is torch.float16:
        return ctx.convert(ctx.wide(operand), torch.float16)
    return ctx.get(operand, torch.float16)


for _name, _make in _COMPARISONS.items():
    _register_comparison(_name, _make)


# Names -> forms for bools and for integers.
_BITWISE = {
    "bitwise_and": (ops.logical_and, ops.bitwise_and),
    "__and__": (ops.logical_and, ops.bitwise_and),
    "bitwise_or": (ops.logical_or, ops.bitwise_or),
    "__or__": (ops.logical_or, ops.bitwise_or),
    "bitwise_xor": (ops.logical_xor, ops.bitwise_xor),
    "bitwise_not": (ops.logical_not, ops.bitwise_not),
}


def _register_bitwise(name: str, logical: Callable[..., Any], bits: Callable[..., Any]) -> None:
    packet = getattr(aten, name)
    names = ("default",) if name == "bitwise_not" else ("Tensor", "Scalar")

    @_elementwise(*(getattr(packet, overload) for overload in names))
    def form(ctx: Context, *operands: ov.Output) -> Any:
        return (logical if ctx.out_dtype() is torch.bool else bits)(*operands)


for _name, _forms in _BITWISE.items():
    _register_bitwise(_name, *_forms)


@converter(aten.isnan.default)
def convert_isnan(ctx: Context, self: Operand) -> Any:
    value = ctx.get(self)
    return ops.not_equal(value, value)


@converter(aten.isinf.default)
def convert_isinf(ctx: Context, self: Operand) -> Any:
    is_half = ctx.dtype(self) is torch.float16
    return nan.is_infinite(ctx, _as_half(ctx, self) if is_half else ctx.get(self))


@converter(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def convert_where(ctx: Context, condition: Operand, self: Operand, other: Operand) -> ov.Output:
    dtype = ctx.out_dtype()
    work = torch.float32 if any(nan.is_lost(side, dtype) for side in (self, other)) else dtype
    sides = (ctx.get(self, work), ctx.get(other, work))
    return ctx.convert(ops.select(ctx.get(condition, torch.bool), *sides).output(0), dtype)


@converter(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def convert_masked_fill(ctx: Context, self: Operand, mask: Operand, value: Operand) -> Any:
    return convert_where(ctx, mask, value, self)
