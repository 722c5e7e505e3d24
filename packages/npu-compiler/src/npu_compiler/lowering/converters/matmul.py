"""Converters of matrix products, grouped matrix products and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.graph.complex_numbers import pairs_of_complex, pairs_of_real, real_of_pairs
from npu_compiler.lowering.context import Context, Operand
from npu_compiler.lowering.registry import converter

# Attention is in attention.py.

__all__: list[str] = []

aten = torch.ops.aten


def _untransposed(ctx: Context, operand: fx.Node) -> tuple[ov.Output, bool]:
    """Returns the operand, or the tensor that it transposes, and whether it is a transpose.

    A transpose of the last two axes becomes MatMul's flag. Weight compression does not recognize a
    weight behind a Transpose node.
    """
    target = operand.target
    rank = ctx.rank(operand)
    if operand.op == "call_function" and rank >= 2:
        source = operand.args[0]
        is_swap = False
        if target is aten.t.default:
            is_swap = rank == 2
        elif target is aten.transpose.int:
            dims = {int(dim) % rank for dim in operand.args[1:3]}  # type: ignore[arg-type]
            is_swap = dims == {rank - 1, rank - 2}
        elif target is aten.permute.default:
            order = [int(dim) % rank for dim in operand.args[1]]  # type: ignore[arg-type,union-attr]
            is_swap = order == [*range(rank - 2), rank - 1, rank - 2]
        if is_swap and isinstance(source, fx.Node):
            return ctx.get(source), True
    return ctx.get(operand), False


def _product(ctx: Context, a: fx.Node, b: fx.Node) -> ov.Output:
    left, transpose_a = _untransposed(ctx, a)
    right, transpose_b = _untransposed(ctx, b)
    return ops.matmul(left, right, transpose_a, transpose_b).output(0)


def _rule_float(node: fx.Node, **_: Any) -> str | None:
    dtype = node.meta["val"].dtype
    if not dtype.is_floating_point:
        return f"a product of {dtype} matrices would be computed in float32"
    return None


@converter(aten.mm.default, aten.bmm.default, rule=_rule_float)
def convert_mm(ctx: Context, self: fx.Node, mat2: fx.Node) -> Any:
    return _product(ctx, self, mat2)


@converter(aten.matmul.default, rule=_rule_float)
def convert_matmul(ctx: Context, self: fx.Node, other: fx.Node) -> Any:
    return _product(ctx, self, other)


@converter(aten.mv.default, rule=_rule_float)
def convert_mv(ctx: Context, self: fx.Node, vec: fx.Node) -> Any:
    return _product(ctx, self, vec)


@converter(aten.dot.default, rule=_rule_float)
def convert_dot(ctx: Context, self: fx.Node, tensor: fx.Node) -> Any:
    return _product(ctx, self, tensor)


@converter(aten.addmm.default, rule=_rule_float)
def convert_addmm(
    ctx: Context, self: Operand, mat1: fx.Node, mat2: fx.Node, beta: Any, alpha: Any
) -> Any:
    return _sum(ctx, self, _product(ctx, mat1, mat2), beta, alpha)


@converter(aten.baddbmm.default, rule=_rule_float)
def convert_baddbmm(
    ctx: Context, self: Operand, batch1: fx.Node, batch2: fx.Node, beta: Any, alpha: Any
) -> Any:
    return _sum(ctx, self, _product(ctx, batch1, batch2), beta, alpha)


def _sum(ctx: Context, addend: Operand, product: ov.Output, beta: Any, alpha: Any) -> Any:
    dtype = ctx.out_dtype()
    if alpha != 1:
        product = ops.multiply(product, ctx.get(alpha, dtype)).output(0)
    if beta == 0:
        return product
    value = ctx.get(addend, dtype)
    if beta != 1:
        value = ops.multiply(value, ctx.get(beta, dtype)).output(0)
    return ops.add(product, value)


@converter(aten.linear.default, rule=_rule_float)
def convert_linear(ctx: Context, input_: fx.Node, weight: fx.Node, bias: Any) -> Any:
    product = ops.matmul(ctx.get(input_), ctx.get(weight), False, True).output(0)
    return product if bias is None else ops.add(product, ctx.get(bias))


# Other products are in matmul.py.


def _rule_rows(node: fx.Node, **arguments: Any) -> str | None:
    rows, weight = node.args[0], node.args[1]
    assert isinstance(rows, fx.Node)
    assert isinstance(weight, fx.Node)
    if (rows.meta["val"].dim(), weight.meta["val"].dim()) != (2, 3):
        return "groups along another axis than the rows of a matrix"
    if not isinstance(weight.meta["val"].shape[0], int):
        return "the number of groups is not fixed"
    if arguments.get("offs", True) is None:
        return "groups without ends"
    return None


@converter("transformers.grouped_mm_fallback.default", rule=_rule_rows)
def convert_grouped_mm_fallback(
    ctx: Context, weight: fx.Node, offs: fx.Node, **given: Any
) -> ov.Output:
    return _grouped(ctx, given["input_"], weight, offs)


@converter(aten._grouped_mm.default, rule=_rule_rows)
def convert_grouped_mm(
    ctx: Context, self: fx.Node, mat2: fx.Node, offs: fx.Node, bias: Any, **_: Any
) -> ov.Output:
    if bias is not None:
        ctx.refuse("a bias per group")
    return ctx.convert(_grouped(ctx, self, mat2, offs), ctx.out_dtype())


def _grouped(ctx: Context, rows: fx.Node, weight: fx.Node, ends: fx.Node) -> ov.Output:
    """Multiplies row r by weight[g] if ends[g - 1] <= r < ends[g]; later rows give 0.

    rows: (rows, depth); weight: (groups, depth, columns); ends: (groups,), ascending integers. Each
    group is one product over its rows: a CPU takes a tenth to a fifth of the time of one product of
    all rows with all matrices (measured 2026-11-20).
    """
    if ctx.fixed_sizes:
        return _chosen(ctx, rows, weight, ends)
    table, value = ctx.get(weight), ctx.get(rows)
    steps, axis = ctx.integers([1]), ctx.integers([0])
    bounds = ctx.get(ends, torch.int64)
    start = axis
    products = []
    count = int(ctx.meta(weight).shape[0])
    for group in range(count):
        stop = ops.slice(bounds, ctx.integers([group]), ctx.integers([group + 1]), steps, axis)
        own = ops.slice(value, start, stop, steps, axis)
        matrix = ops.gather(table, ctx.number(group, torch.int64), ctx.number(0, torch.int64))
        products.append(ops.matmul(own, matrix, False, False).output(0))
        start = stop.output(0)
    last = ctx.number(torch.iinfo(torch.int64).max, torch.int64)
    rest = ops.slice(value, start, ctx.reshape(last, [1]), steps, axis)
    columns = ctx.size(weight, 2)
    none = ops.concat([ops.gather(ops.shape_of(rest, output_type="i64"), axis, axis), columns], 0)
    products.append(ops.broadcast(ctx.number(0, ctx.dtype(rows)), none).output(0))
    together = ops.concat(products, 0).output(0)
    sizes = ops.concat([ctx.size(rows, 0), columns], 0)
    return ops.reshape(together, sizes, False).output(0)


def _chosen(ctx: Context, rows: fx.Node, weight: fx.Node, ends: fx.Node) -> ov.Output:
    """Computes `_grouped` with fixed sizes: all rows times each matrix, then a selection."""
    table, value, bounds = ctx.get(weight), ctx.get(rows), ctx.get(ends, torch.int64)
    count, width = (int(ctx.meta(weight).shape[dim]) for dim in (0, 2))
    length = ctx.meta(rows).shape[0]
    if not isinstance(length, int):
        ctx.refuse("a dynamic number of rows")
    places = ops.constant(np.arange(length, dtype=np.int64).reshape(length, 1))
    chosen = ops.constant(np.zeros((length, width)), value.get_element_type()).output(0)
    # From the last group to the first: a row belongs to the first group that ends after it.
    for group in reversed(range(count)):
        index, axis = ctx.number(group, torch.int64), ctx.number(0, torch.int64)
        product = ops.matmul(value, ops.gather(table, index, axis), False, False)
        is_before = ops.less(places, ops.gather(bounds, index, axis))
        chosen = ops.select(is_before, product, chosen).output(0)
    return chosen


@converter(pairs_of_real)
def convert_pairs_of_real(
    ctx: Context, self: fx.Node, dim: Sequence[int], scale: float
) -> ov.Output:
    return _scaled(ctx, ops.rdft(ctx.get(self), ctx.integers(dim)).output(0), scale)


@converter(pairs_of_complex)
def convert_pairs_of_complex(
    ctx: Context, self: fx.Node, dim: Sequence[int], inverse: bool, scale: float
) -> ov.Output:
    axes = ctx.integers(dim)
    if not inverse:
        return _scaled(ctx, ops.dft(ctx.get(self), axes).output(0), scale)
    # OpenVINO's inverse divides by the number of elements.
    count = math.prod(int(ctx.meta(self).shape[axis]) for axis in dim)
    return _scaled(ctx, ops.idft(ctx.get(self), axes).output(0), scale * count)


@converter(real_of_pairs)
def convert_real_of_pairs(
    ctx: Context, self: fx.Node, dim: Sequence[int], last_size: int, scale: float
) -> ov.Output:
    sizes = [int(ctx.meta(self).shape[axis]) for axis in dim[:-1]] + [last_size]
    made = ops.irdft(ctx.get(self), ctx.integers(dim), ctx.integers(sizes)).output(0)
    return _scaled(ctx, made, scale * math.prod(sizes))


def _scaled(ctx: Context, value: ov.Output, scale: float) -> ov.Output:
    if math.isclose(scale, 1.0, rel_tol=1e-12):
        return value
    return ops.multiply(value, ctx.number(scale, ctx.out_dtype())).output(0)
