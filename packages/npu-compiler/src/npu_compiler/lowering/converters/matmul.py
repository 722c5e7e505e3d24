"""Matrix products: mm, addmm, bmm, baddbmm, matmul, linear, mv, dot.

Attention, which is two products and a softmax, is in attention.py.
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


def _untransposed(ctx: Context, operand: fx.Node) -> tuple[ov.Output, bool]:
    """Returns an operand, or what it is the transpose of, and whether it is one.

    A transpose of the last two axes folds into MatMul's own flag. Without this a weight reaches the
    product behind a Transpose node, and weight compression does not recognize it as a weight.
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
