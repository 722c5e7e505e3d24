"""Converters of reductions, cumulative sums, sorting, and softmax with its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering import nan
from npu_compiler.lowering.context import MASKED, Context
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

aten = torch.ops.aten


def _reduce(
    ctx: Context, make: Callable[..., Any], value: ov.Output, self: Any, dim: Any, keepdim: bool
) -> Any:
    if ctx.rank(self) == 0:
        return value
    axes = ctx.axes(self, dim)
    if not keepdim and ctx.rank(self) - len(axes) == 2 and make in _SUMS:
        # If the sum drops dimensions, the CPU plugin adds a later vector along the wrong axis,
        # which it mistakes for the channels (OpenVINO 2026.4.1).
        return ctx.squeeze(make(value, ctx.integers(axes), True).output(0), axes)
    return make(value, ctx.integers(axes), keepdim)


_SUMS = (ops.reduce_sum, ops.reduce_mean)


# Overloads -> OpenVINO node and the dtype in which it reduces (None: the result's).
_REDUCTIONS = {
    (aten.sum.default, aten.sum.dim_IntList): (ops.reduce_sum, None),
    (aten.mean.default, aten.mean.dim): (ops.reduce_mean, None),
    (aten.prod.default, aten.prod.dim_int): (ops.reduce_prod, None),
    (aten.any.default, aten.any.dim, aten.any.dims): (ops.reduce_logical_or, torch.bool),
    (aten.all.default, aten.all.dim, aten.all.dims): (ops.reduce_logical_and, torch.bool),
}


def _register(keys: Sequence[Any], make: Callable[..., Any], dtype: torch.dtype | None) -> None:
    @converter(*keys)
    def convert(
        ctx: Context, self: fx.Node, dim: Any = None, keepdim: bool = False, **_: Any
    ) -> Any:
        return _reduce(ctx, make, ctx.get(self, dtype or ctx.out_dtype()), self, dim, keepdim)


for _keys, (_make, _dtype) in _REDUCTIONS.items():
    _register(_keys, _make, _dtype)


@converter(aten.amax.default, aten.max.default)
def convert_amax(ctx: Context, self: fx.Node, dim: Any = None, keepdim: bool = False) -> Any:
    return _peak(ctx, self, dim, keepdim, is_max=True)


@converter(aten.amin.default, aten.min.default)
def convert_amin(ctx: Context, self: fx.Node, dim: Any = None, keepdim: bool = False) -> Any:
    return _peak(ctx, self, dim, keepdim, is_max=False)


def _peak(ctx: Context, self: fx.Node, dim: Any, keepdim: bool, *, is_max: bool) -> Any:
    """Returns the greatest or least value.

    OpenVINO starts from the largest finite number, which is wrong if all values are infinite.
    """
    value = ctx.get(self)
    result = _reduce(ctx, ops.reduce_max if is_max else ops.reduce_min, value, self, dim, keepdim)
    dtype = ctx.dtype(self)
    if ctx.rank(self) == 0 or not dtype.is_floating_point:
        return result
    if nan.is_exact(ctx):
        mark = nan.marks(ctx, value, is_max=is_max)
        found = _reduce(ctx, ops.reduce_max, mark, self, dim, keepdim)
        return nan.restored(ctx, result.output(0), found, is_max=is_max)
    end = ctx.number(float("-inf") if is_max else float("inf"), dtype)
    all_at_end = _reduce(
        ctx, ops.reduce_logical_and, ops.equal(value, end).output(0), self, dim, keepdim
    )
    return ops.select(all_at_end, end, result)


def _variance(
    ctx: Context, self: fx.Node, dim: Any, correction: Any, keepdim: bool
) -> tuple[ov.Output, ov.Output]:
    dtype = ctx.out_dtype()
    axes = ctx.axes(self, dim)
    indices = ctx.integers(axes)
    value = ctx.get(self)
    mean = ops.reduce_mean(value, indices, True).output(0)
    centered = ops.subtract(value, mean)
    squares = ops.multiply(centered, centered)
    correction = 1 if correction is None else correction
    if correction == 0:
        spread = ops.reduce_mean(squares, indices, keepdim).output(0)
    else:
        sizes = [size for axis in axes if (size := ctx.sizes(self)[axis]) is not None]
        if len(sizes) < len(axes):
            ctx.refuse("a correction over a symbolic size")
        divisor = math.prod(sizes) - correction
        if divisor <= 0:
            ctx.refuse("a variance without degrees of freedom")
        total = ops.reduce_sum(squares, indices, keepdim)
        spread = ops.multiply(total, ctx.number(1 / divisor, dtype)).output(0)
    if not keepdim:
        mean = ctx.squeeze(mean, axes)
    return spread, mean


@converter(
    aten.var.correction,
    aten.var.dim,
    aten.std.correction,
    aten.std.dim,
    aten.var_mean.correction,
)
def convert_variance(ctx: Context, self: fx.Node, dim: Any, keepdim: bool, **degrees: Any) -> Any:
    (correction,) = degrees.values()  # or `unbiased`: True is 1
    spread, mean = _variance(ctx, self, dim, correction, keepdim)
    if ctx.node.target is aten.var_mean.correction:
        return spread, mean
    return ops.sqrt(spread) if "std" in str(ctx.node.target) else spread


@converter(aten.linalg_vector_norm.default)
def convert_vector_norm(
    ctx: Context, self: fx.Node, ord_: Any, dim: Any, keepdim: bool, **_: Any
) -> Any:
    if ord_ not in (1, 2):
        ctx.refuse(f"a norm of order {ord_}")
    value = ctx.get(self, ctx.out_dtype())
    if ctx.rank(self) == 0:
        return ops.abs(value)
    return _reduce(ctx, ops.reduce_l2 if ord_ == 2 else ops.reduce_l1, value, self, dim, keepdim)


@converter(aten.logsumexp.default)
def convert_logsumexp(ctx: Context, self: fx.Node, dim: Any, keepdim: bool) -> Any:
    axes = ctx.axes(self, dim)
    indices = ctx.integers(axes)
    value = ctx.get(self)
    peak = ops.reduce_max(value, indices, True).output(0)
    # An infinity minus itself would be NaN.
    is_endless = nan.is_infinite(ctx, peak)
    peak = ops.select(is_endless, ctx.number(0, ctx.out_dtype()), peak)
    powers = nan.exp(ctx, ops.subtract(value, peak).output(0))
    total = ops.reduce_sum(powers, indices, True)
    result = ops.add(ops.log(total), peak).output(0)
    return result if keepdim else ctx.squeeze(result, axes)


@converter(aten.cumsum.default)
def convert_cumsum(ctx: Context, self: fx.Node, dim: int, **_: Any) -> Any:
    value = ctx.get(self, ctx.out_dtype())
    if ctx.rank(self) == 0:
        return value
    return ops.cumsum(value, ctx.number(ctx.axis(self, dim), torch.int64))


def _extreme(ctx: Context, self: fx.Node, dim: int, mode: str) -> tuple[ov.Output, ov.Output]:
    """Returns the best value along an axis and its first position; keeps the axis."""
    axis = ctx.axis(self, dim)
    value = ctx.get(self)
    if ctx.dtype(self) is torch.bool:
        value = ctx.convert(value, torch.int32)
    if ctx.rank(self) == 0:
        return value, ctx.number(0, torch.int64)
    one = ctx.number(1, torch.int64)
    return _topk(ctx, value, one, axis, mode, is_top=mode == "max")


def _topk(
    ctx: Context, value: ov.Output, count: ov.Output, axis: int, mode: str, *, is_top: bool
) -> tuple[ov.Output, ov.Output]:
    """Returns the best values and their positions; NaN is above inf, or last if not is_top."""
    is_exact = nan.is_real(value) and nan.is_exact(ctx)
    keys = nan.extreme_keys(ctx, value, is_top=is_top) if is_exact else value
    best = ops.topk(keys, count, axis, mode, "value", index_element_type="i64", stable=True)
    if not is_exact:
        return best.output(0), best.output(1)
    return ops.gather_elements(value, best.output(1), axis).output(0), best.output(1)


@converter(aten.max.dim, aten.min.dim)
def convert_extreme(ctx: Context, self: fx.Node, dim: int, keepdim: bool) -> Any:
    mode = "max" if "max" in str(ctx.node.target) else "min"
    values, indices = _extreme(ctx, self, dim, mode)
    values = ctx.convert(values, ctx.out_dtype())
    if keepdim or ctx.rank(self) == 0:
        return values, indices
    axes = [ctx.axis(self, dim)]
    return ctx.squeeze(values, axes), ctx.squeeze(indices, axes)


@converter(aten.argmax.default, aten.argmin.default)
def convert_arg_extreme(ctx: Context, self: fx.Node, dim: Any, keepdim: bool) -> Any:
    mode = "max" if "argmax" in str(ctx.node.target) else "min"
    if dim is None:
        if keepdim:
            ctx.refuse("keepdim without a dim")
        flat = ctx.reshape(ctx.get(self), [-1])
        one = ctx.number(1, torch.int64)
        _, position = _topk(ctx, flat, one, 0, mode, is_top=mode == "max")
        return ctx.reshape(position, [])
    _, indices = _extreme(ctx, self, dim, mode)
    if keepdim or ctx.rank(self) == 0:
        return indices
    return ctx.squeeze(indices, [ctx.axis(self, dim)])


@converter(aten.topk.default)
def convert_topk(
    ctx: Context, self: fx.Node, k: Any, dim: int, largest: bool, sorted_: bool
) -> Any:
    count = ctx.get(k, torch.int64)
    mode = "max" if largest else "min"
    return _topk(ctx, ctx.get(self), count, ctx.axis(self, dim), mode, is_top=True)


@converter(aten.sort.default, aten.sort.stable)
def convert_sort(ctx: Context, self: fx.Node, dim: int, descending: bool, **_: Any) -> Any:
    size = ctx.reshape(ctx.size(self, dim), [])
    mode = "max" if descending else "min"
    return _topk(ctx, ctx.get(self), size, ctx.axis(self, dim), mode, is_top=True)


@converter(aten._softmax.default, aten.softmax.int, aten._safe_softmax.default)
def convert_softmax(ctx: Context, self: fx.Node, dim: int, **_: Any) -> Any:
    value = ctx.get(self, ctx.out_dtype())
    if ctx.rank(self) == 0:
        # 1 for numbers, NaN for NaN and infinities.
        return ops.add(ops.subtract(value, value), ctx.number(1, ctx.out_dtype()))
    axis = ctx.integers([ctx.axis(self, dim)])
    if ctx.node.target is not aten._safe_softmax.default:
        soft = ops.softmax(value, ctx.axis(self, dim)).output(0)
        return _whole_rows(ctx, soft, axis, dim)
    # _safe_softmax gives 0 for a row of -inf.
    low = ops.negative(nan.infinity(ctx, value))
    is_seen = ops.not_equal(nan.wide(ctx, value), low)
    is_live = ops.reduce_logical_or(is_seen, axis, True)
    floor = ctx.number(MASKED, ctx.out_dtype())
    finite = ops.select(is_seen, value, floor)
    soft = _whole_rows(ctx, ops.softmax(finite, ctx.axis(self, dim)).output(0), axis, dim)
    return ops.select(is_live, soft, ctx.number(0, ctx.out_dtype()))


def _whole_rows(ctx: Context, soft: ov.Output, axis: ov.Output, dim: int) -> ov.Output:
    """Spreads NaN over its row, unless later products do so; the device leaves it in place."""
    if nan.is_only_multiplied(ctx.node, dim) or not nan.is_exact(ctx):
        return soft
    return nan.poisoned(soft, axis)


@converter(aten._log_softmax.default, aten.log_softmax.int)
def convert_log_softmax(ctx: Context, self: fx.Node, dim: int, **_: Any) -> Any:
    value = ctx.get(self, ctx.out_dtype())
    result = ops.log_softmax(value, ctx.axis(self, dim)).output(0)
    if not nan.is_exact(ctx):
        return result
    return nan.poisoned(result, ctx.integers([ctx.axis(self, dim)]))


@converter(aten._softmax_backward_data.default)
def convert_softmax_backward(
    ctx: Context, grad_output: fx.Node, output: fx.Node, dim: int, **_: Any
) -> Any:
    y = ctx.get(output)
    weighted = ops.multiply(ctx.get(grad_output), y)
    total = ops.reduce_sum(weighted, ctx.integers([ctx.axis(output, dim)]), True)
    result = ops.subtract(weighted, ops.multiply(y, total))
    return ctx.convert(result.output(0), ctx.out_dtype())


@converter(aten._log_softmax_backward_data.default)
def convert_log_softmax_backward(
    ctx: Context, grad_output: fx.Node, output: fx.Node, dim: int, **_: Any
) -> Any:
    grad = ctx.get(grad_output)
    total = ops.reduce_sum(grad, ctx.integers([ctx.axis(output, dim)]), True)
    result = ops.subtract(grad, ops.multiply(ops.exp(ctx.get(output)), total))
    return ctx.convert(result.output(0), ctx.out_dtype())


def _rule_histc(node: fx.Node, min_: float, max_: float, **_: Any) -> str | None:
    dtype = node.args[0].meta["val"].dtype  # type: ignore[union-attr]
    if dtype.is_floating_point and dtype is not torch.float32:
        return "bins are counted in a half type"
    return None if min_ < max_ else "the ends of the bins depend on data"


@converter(aten.histc.default, rule=_rule_histc)
def convert_histc(ctx: Context, self: fx.Node, bins: int, min_: float, max_: float) -> Any:
    work = torch.float32
    value = ctx.reshape(ctx.get(self, work), [-1, 1])
    low, high = ctx.number(min_, work), ctx.number(max_, work)
    scaled = ops.multiply(ops.subtract(value, low), ctx.number(bins, work))
    place = ops.floor(ops.divide(scaled, ctx.number(max_ - min_, work)))
    # The right end belongs to the last bin; values outside and NaN belong to none.
    place = ops.minimum(place, ctx.number(bins - 1, work))
    is_inside = ops.logical_and(ops.greater_equal(value, low), ops.less_equal(value, high))
    zero, one = ctx.number(0, torch.int64), ctx.number(1, torch.int64)
    every = ops.range(zero, ctx.number(bins, torch.int64), one, output_type="f32")
    hits = ops.logical_and(ops.equal(place, ctx.unsqueeze(every.output(0), [0])), is_inside)
    return ops.reduce_sum(ctx.convert(hits.output(0), ctx.out_dtype()), ctx.integers([0]), False)
