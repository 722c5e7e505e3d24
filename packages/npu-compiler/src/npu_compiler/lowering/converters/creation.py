"""Tensors from nothing (full, arange, ...), casts and copies.

Constants given to a graph are bound in npu_compiler.lowering.lower, views are in views.py.
"""

from __future__ import annotations

from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering.context import Context, Operand
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

aten = torch.ops.aten


def _filled(ctx: Context, value: Operand, shape: ov.Output) -> Any:
    return ops.broadcast(ctx.get(value, ctx.out_dtype()), shape)


def _as_result(ctx: Context, value: Operand) -> Any:
    """Fills the shape of the current node's result, whose sizes come from another tensor."""
    sizes = ctx.sizes(ctx.node)
    if any(size is None for size in sizes):
        return _filled(ctx, value, ctx.shape(ctx.node.args[0]))  # type: ignore[arg-type]
    return _filled(ctx, value, ctx.integers([size for size in sizes if size is not None]))


@converter(aten.full.default, compute=False)
def convert_full(ctx: Context, size: Any, fill_value: Operand, **_: Any) -> Any:
    return _filled(ctx, fill_value, ctx.vector(size))


@converter(aten.zeros.default, aten.empty.memory_format, compute=False)
def convert_zeros(ctx: Context, size: Any, **_: Any) -> Any:
    return _filled(ctx, 0, ctx.vector(size))


@converter(aten.ones.default, compute=False)
def convert_ones(ctx: Context, size: Any, **_: Any) -> Any:
    return _filled(ctx, 1, ctx.vector(size))


@converter(aten.new_full.default, compute=False)
def convert_new_full(ctx: Context, self: Any, size: Any, fill_value: Operand, **_: Any) -> Any:
    return _filled(ctx, fill_value, ctx.vector(size))


@converter(aten.new_zeros.default, aten.new_empty.default, compute=False)
def convert_new_zeros(ctx: Context, self: Any, size: Any, **_: Any) -> Any:
    return _filled(ctx, 0, ctx.vector(size))


@converter(aten.new_ones.default, compute=False)
def convert_new_ones(ctx: Context, self: Any, size: Any, **_: Any) -> Any:
    return _filled(ctx, 1, ctx.vector(size))


@converter(aten.full_like.default, compute=False)
def convert_full_like(ctx: Context, self: fx.Node, fill_value: Operand, **_: Any) -> Any:
    return _as_result(ctx, fill_value)


@converter(aten.zeros_like.default, aten.empty_like.default, compute=False)
def convert_zeros_like(ctx: Context, self: fx.Node, **_: Any) -> Any:
    return _as_result(ctx, 0)


@converter(aten.ones_like.default, compute=False)
def convert_ones_like(ctx: Context, self: fx.Node, **_: Any) -> Any:
    return _as_result(ctx, 1)


@converter(aten.fill.Scalar, aten.fill.Tensor, compute=False)
def convert_fill(ctx: Context, self: fx.Node, value: Operand) -> Any:
    return _as_result(ctx, value)


@converter(aten.scalar_tensor.default, compute=False)
def convert_scalar_tensor(ctx: Context, s: Operand, **_: Any) -> Any:
    return ctx.get(s, ctx.out_dtype())


def _range(ctx: Context, start: Operand, end: Operand, step: Operand) -> Any:
    dtype = ctx.out_dtype()
    if dtype.is_floating_point:
        # A half type cannot hold the counter, so count in float32 and cast.
        work = torch.float32
    else:
        work = torch.int64
    values = ops.range(
        ctx.get(start, work),
        ctx.get(end, work),
        ctx.get(step, work),
        output_type="f32" if work is torch.float32 else "i64",
    )
    return ctx.convert(values.output(0), dtype)


@converter(aten.arange.default, compute=False)
def convert_arange(ctx: Context, end: Operand, **_: Any) -> Any:
    return _range(ctx, 0, end, 1)


@converter(aten.arange.start, compute=False)
def convert_arange_start(ctx: Context, start: Operand, end: Operand, **_: Any) -> Any:
    return _range(ctx, start, end, 1)


@converter(aten.arange.start_step, compute=False)
def convert_arange_step(ctx: Context, start: Operand, end: Operand, step: Operand, **_: Any) -> Any:
    return _range(ctx, start, end, step)


@converter(
    aten._to_copy.default,
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.device,
    aten.type_as.default,
    torch.ops.prims.convert_element_type.default,
    compute=False,
)
def convert_to_copy(ctx: Context, **arguments: Any) -> Any:
    operand = arguments["self"] if "self" in arguments else arguments["a"]
    dtype = ctx.out_dtype()
    value = ctx.get(operand)
    is_to_integer = not dtype.is_floating_point and dtype is not torch.bool
    if ctx.dtype(operand).is_floating_point and is_to_integer:
        # torch truncates; the CPU plugin's convert rounds on some paths.
        value = ops.multiply(ops.sign(value), ops.floor(ops.abs(value))).output(0)
    return ctx.convert(value, dtype)


@converter(
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.lift.default,
    aten.positive.default,
    aten.resolve_conj.default,
    compute=False,
)
def convert_same(ctx: Context, self: fx.Node, **_: Any) -> Any:
    return ctx.get(self)


@converter(aten.copy.default, compute=False)
def convert_copy(ctx: Context, self: fx.Node, src: Operand, **_: Any) -> Any:
    value = ctx.get(src, ctx.out_dtype())
    if ctx.sizes(src) == ctx.sizes(self) and None not in ctx.sizes(self):
        return value
    return ops.broadcast(value, ctx.shape(self))


@converter(aten.tril.default, aten.triu.default, compute=False)
def convert_triangle(ctx: Context, self: fx.Node, diagonal: Any) -> Any:
    is_lower = "tril" in str(ctx.node.target)
    zero = ctx.number(0, torch.int64)
    one = ctx.number(1, torch.int64)
    rows = ops.range(zero, ctx.reshape(ctx.size(self, -2), []), one, output_type="i64")
    columns = ops.range(zero, ctx.reshape(ctx.size(self, -1), []), one, output_type="i64")
    limit = ops.add(ctx.unsqueeze(rows.output(0), [1]), ctx.get(diagonal, torch.int64))
    across = ctx.unsqueeze(columns.output(0), [0])
    keep = ops.less_equal(across, limit) if is_lower else ops.greater_equal(across, limit)
    return ops.select(keep, ctx.get(self), ctx.number(0, ctx.out_dtype()))
