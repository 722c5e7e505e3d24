"""Comparisons, logic, bits, and selection by a mask.

Arithmetic is in elementwise.py, any and all in reductions.py.
"""

from __future__ import annotations

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
