"""Forms that propagate NaN and infinities as torch does.

OpenVINO's Relu, Clamp, Maximum, Exp, ReduceMax, MaxPool, TopK and Softmax drop NaN, or spread it
only to a part of its row (CPU plugin, OpenVINO 2026.4.1). The forms here test for it by `x != x`,
which works on every plugin. The context's `nan` decides where they are used.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.lowering.context import Context, torch_dtype

__all__ = [
    "exp", "extreme_keys", "guarded", "is_behind_product", "is_bounded_below", "is_exact",
    "is_lost", "is_only_multiplied", "is_real", "marks", "poisoned", "restored", "wide",
]  # fmt: skip

aten = torch.ops.aten

_PRODUCTS = frozenset(
    {
        aten.convolution.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default,
        aten.conv_transpose2d.input, aten.linear.default, aten.addmm.default, aten.mm.default,
        aten.bmm.default, aten.baddbmm.default, aten.matmul.default,
    }
)  # fmt: skip
# Ops whose fast forms turn NaN into a number or inf; for clamp this depends on its bounds.
_FLOORED = frozenset(
    {
        aten.relu.default, aten.relu6.default, torch.ops.npu.linear_relu.default,
        torch.ops.npu.addmm_relu.default, torch.ops.npu.conv_bn_relu.default,
    }
)  # fmt: skip
# Operations that plugins fuse with the product before them.
_JOINED = frozenset(
    {
        aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.mul.Tensor,
        aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, operator.getitem,
        aten._native_batch_norm_legit_no_training.default, aten.batch_norm.default,
    }
)  # fmt: skip
# Operations that keep the last axis.
_SAME_ROWS = frozenset(
    {
        aten._to_copy.default, aten.clone.default, aten.alias.default, aten.detach.default,
        aten.expand.default, aten.view.default, aten._unsafe_view.default, aten.reshape.default,
        aten.dropout.default, aten.contiguous.default, aten.to.dtype,
        torch.ops.prims.convert_element_type.default,
    }
)  # fmt: skip
_LEFT_OF_PRODUCT: dict[Any, int] = {
    aten.mm.default: 0, aten.bmm.default: 0, aten.matmul.default: 0, aten.linear.default: 0,
    aten.addmm.default: 1, aten.baddbmm.default: 1,
}  # fmt: skip


def is_exact(ctx: Context, *, is_fused: bool = False) -> bool:
    """Whether the current node must propagate NaN; records the node in the context if not.

    `is_fused`: whether the exact form would break a fusion with a product.
    """
    if ctx.nan == "propagate" or (ctx.nan is None and not is_fused):
        return True
    ctx.drops_nan.append(ctx.node)
    return False


def is_behind_product(operand: Any) -> bool:
    """Whether a plugin would fuse an activation of this operand with a product.

    That includes convolutions, and sums, factors or a batch norm in between.
    """
    if not isinstance(operand, fx.Node):
        return False
    if operand.target in _PRODUCTS:
        return True
    if operand.target not in _JOINED or len(operand.users) > 1:
        return False
    return any(is_behind_product(source) for source in operand.args[:2])


def is_bounded_below(ctx: Context, operand: Any) -> bool:
    """Whether an operand has neither NaN nor -inf, because its form drops them.

    A later operation that drops them loses nothing then.
    """
    return operand in ctx.drops_nan and operand.target in _FLOORED


def is_only_multiplied(node: fx.Node, dim: int) -> bool:
    """Whether rows of a result along dim are only summed up in products.

    One NaN in a row then has the effect of a row of NaN.
    """
    value = node.meta["val"]
    if dim % max(value.dim(), 1) != value.dim() - 1 or not node.users:
        return False
    for user in node.users:
        place = _LEFT_OF_PRODUCT.get(user.target)
        if place is not None:
            if [arg is node for arg in user.args].index(True) != place or user.args.count(node) > 1:
                return False
        elif user.target not in _SAME_ROWS or not _keeps_rows(node, user):
            return False
    return True


def _keeps_rows(node: fx.Node, user: fx.Node) -> bool:
    before, after = node.meta["val"], user.meta["val"]
    if not after.dtype.is_floating_point or not after.dim():
        return False
    widths = before.shape[-1], after.shape[-1]
    same = all(isinstance(width, int) for width in widths) and widths[0] == widths[1]
    return same and is_only_multiplied(user, -1)


def is_real(value: ov.Output) -> bool:
    """Whether a value has a floating type, which may hold NaN."""
    return bool(value.get_element_type().is_real())


def guarded(source: ov.Output, result: Any) -> ov.Output:
    """Returns the result with NaN where the source is NaN; both have one type."""
    return ops.select(ops.not_equal(source, source), source, result).output(0)


def exp(ctx: Context, value: ov.Output) -> ov.Output:
    """Returns the exponential; Exp of the CPU plugin gives inf for NaN."""
    result = ops.exp(value).output(0)
    return guarded(value, result) if ctx.nan != "fast" else result


def poisoned(result: ov.Output, axis: ov.Output) -> ov.Output:
    """Returns the result with NaN in all of each row that has one.

    Args:
        result: all values <= 0 or all >= 0, so that a sum without NaN is not NaN.
        axis: of the rows.
    """
    total = ops.reduce_sum(result, axis, True)
    return ops.select(ops.not_equal(total, total), total, result).output(0)


def wide(ctx: Context, value: ov.Output) -> ov.Output:
    """Casts bfloat16 to float32, because the device loses infinite constants of bfloat16.

    On processors without bfloat16 arithmetic, the CPU plugin converts its constants to float32, and
    infinities to the largest number (OpenVINO 2026.4.1).
    """
    is_bfloat16 = value.get_element_type() == ov.Type.bf16
    return ctx.convert(value, torch.float32) if is_bfloat16 else value


def infinity(ctx: Context, value: ov.Output) -> ov.Output:
    """Returns infinity in the type of wide(value).

    It stays in float16 if the value is: in a half-precision program, the CPU plugin turns an
    infinite float32 constant into the largest float16 (OpenVINO 2026.4.1).
    """
    return _constant(ctx, wide(ctx, value), math.inf)


def is_infinite(ctx: Context, value: ov.Output) -> ov.Output:
    """Whether each element is an infinity of either sign."""
    return ops.equal(ops.abs(wide(ctx, value)), infinity(ctx, value)).output(0)


def is_lost(value: Any, dtype: torch.dtype) -> bool:
    """Whether the device loses a number in constants of a dtype; see wide."""
    return dtype is torch.bfloat16 and isinstance(value, float) and math.isinf(value)


def marks(ctx: Context, value: ov.Output, *, is_max: bool) -> ov.Output:
    """Returns 2 for NaN, 0 for the infinity that loses, 1 for numbers: a row has its maximum."""
    value = wide(ctx, value)
    two, one, zero = (_constant(ctx, value, mark) for mark in (2, 1, 0))
    end = _constant(ctx, value, -math.inf if is_max else math.inf)
    finite = ops.select(ops.equal(value, end), zero, one)
    return ops.select(ops.not_equal(value, value), two, finite).output(0)


def restored(ctx: Context, result: ov.Output, mark: Any, *, is_max: bool) -> ov.Output:
    """Restores NaN and infinities in greatest or least values, by the maxima of marks."""
    value = wide(ctx, result)
    end = _constant(ctx, value, -math.inf if is_max else math.inf)
    one = _constant(ctx, value, 1)
    found = ops.select(ops.less(mark, one), end, value)
    whole = ops.select(ops.greater(mark, one), _constant(ctx, value, math.nan), found).output(0)
    return ctx.convert(whole, torch_dtype(result.get_element_type()))


def extreme_keys(ctx: Context, value: ov.Output, *, is_top: bool) -> ov.Output:
    """Returns numbers in torch's order of the values: NaN is above inf, or last if not is_top.

    Infinity maps to the largest number, and that to the one before it.
    """
    # Also for bfloat16 in float32, because a device may compute that in bfloat16.
    limits = torch.finfo(torch_dtype(value.get_element_type()))
    value = wide(ctx, value)
    sign = 1.0 if is_top else -1.0
    before = limits.max - limits.eps * (limits.max / (2 - limits.eps))
    inf, top, second = (_constant(ctx, value, sign * v) for v in (math.inf, limits.max, before))
    moved = ops.select(ops.equal(value, top), second, value)
    moved = ops.select(ops.equal(value, inf), top, moved)
    return ops.select(ops.not_equal(value, value), inf, moved).output(0)


def _constant(ctx: Context, value: ov.Output, number: float) -> ov.Output:
    return ctx.number(number, torch_dtype(value.get_element_type()))
