"""Symbolic integers: sizes of tensors and the arithmetic on them, as rank-0 int64 nodes.

Shapes that views need are assembled by Context.vector; see npu_compiler.lowering.context.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering.context import Context, Operand
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

aten = torch.ops.aten


@converter(operator.getitem, compute=False)
def convert_getitem(ctx: Context, arg0: Any, arg1: Any) -> Any:
    values = ctx.value(arg0)
    if not isinstance(values, tuple):
        ctx.refuse("only a tuple of results can be indexed")
    value = values[arg1]
    if value is None:
        ctx.refuse(f"result {arg1} of {arg0.name} is not computed by its converter")
    return value


@converter(aten.sym_size.int, compute=False)
def convert_sym_size(ctx: Context, self: fx.Node, dim: int) -> Any:
    return ctx.reshape(ctx.size(self, dim), [])


@converter(aten.sym_numel.default, compute=False)
def convert_sym_numel(ctx: Context, self: fx.Node) -> Any:
    return ops.reduce_prod(ctx.shape(self), ctx.integers([0]), False)


def _symbolic_dtype(ctx: Context) -> torch.dtype:
    return ctx.out_dtype()


def _arithmetic(keys: tuple[Any, ...], make: Callable[..., Any]) -> None:
    def convert(ctx: Context, arg0: Operand, arg1: Operand) -> Any:
        dtype = _symbolic_dtype(ctx)
        return make(ctx.get(arg0, dtype), ctx.get(arg1, dtype))

    convert.__name__ = f"convert_symbolic_{keys[0].__name__}"
    converter(*keys, compute=False)(convert)


def _floor_div(a: Any, b: Any) -> Any:
    return ops.divide(ops.subtract(a, ops.floor_mod(a, b)), b)


_arithmetic((operator.add,), ops.add)
_arithmetic((operator.sub,), ops.subtract)
_arithmetic((operator.mul,), ops.multiply)
_arithmetic((operator.floordiv,), _floor_div)
_arithmetic((operator.mod,), ops.floor_mod)
_arithmetic((operator.truediv,), ops.divide)
_arithmetic((operator.pow,), ops.power)
_arithmetic((torch.sym_max,), ops.maximum)
_arithmetic((torch.sym_min,), ops.minimum)


def _comparison(key: Any, make: Callable[..., Any]) -> None:
    def convert(ctx: Context, arg0: Operand, arg1: Operand) -> Any:
        return make(ctx.get(arg0, torch.int64), ctx.get(arg1, torch.int64))

    convert.__name__ = f"convert_symbolic_{key.__name__}"
    converter(key, compute=False)(convert)


_comparison(operator.eq, ops.equal)
_comparison(operator.ne, ops.not_equal)
_comparison(operator.lt, ops.less)
_comparison(operator.le, ops.less_equal)
_comparison(operator.gt, ops.greater)
_comparison(operator.ge, ops.greater_equal)


@converter(operator.neg, compute=False)
def convert_symbolic_neg(ctx: Context, arg0: Operand) -> Any:
    return ops.negative(ctx.get(arg0))


@converter(torch.sym_float, compute=False)
def convert_sym_float(ctx: Context, arg0: Operand) -> Any:
    return ctx.get(arg0, torch.float32)


@converter(torch.sym_int, math.trunc, compute=False)
def convert_sym_int(ctx: Context, arg0: Operand) -> Any:
    return ctx.get(arg0, torch.int64)
