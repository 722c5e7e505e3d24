"""Products of groups of rows with a matrix each, as a mixture of experts makes them.

Other products are in matmul.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

aten = torch.ops.aten


def _rule_rows(node: fx.Node, **arguments: Any) -> str | None:
    rows, weight = node.args[0], node.args[1]
    assert isinstance(rows, fx.Node)
    assert isinstance(weight, fx.Node)
    if (rows.meta["val"].dim(), weight.meta["val"].dim()) != (2, 3):
        return "groups of another axis than the rows of a matrix"
    if not isinstance(weight.meta["val"].shape[0], int):
        return "the number of groups is not fixed"
    if arguments.get("offs", True) is None:
        return "groups without their ends"
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
        ctx.refuse("a bias of each group")
    return ctx.convert(_grouped(ctx, self, mat2, offs), ctx.out_dtype())


def _grouped(ctx: Context, rows: fx.Node, weight: fx.Node, ends: fx.Node) -> ov.Output:
    """Row r times weight[g], where ends[g - 1] <= r < ends[g]; a row behind the last end gives 0.

    One product per group, over as many rows as the group has: a CPU takes a tenth to a fifth of the
    time that one product of all rows with all matrices takes (measured 2026-11-20).

    Args:
        ctx: the lowering.
        rows: (rows, depth).
        weight: (groups, depth, columns).
        ends: (groups,) int32 or int64, rising.
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
    """The same without a size that depends on the ends: all rows times each matrix, then chosen."""
    table, value, bounds = ctx.get(weight), ctx.get(rows), ctx.get(ends, torch.int64)
    count, width = (int(ctx.meta(weight).shape[dim]) for dim in (0, 2))
    length = ctx.meta(rows).shape[0]
    if not isinstance(length, int):
        ctx.refuse("a number of rows that varies")
    places = ops.constant(np.arange(length, dtype=np.int64).reshape(length, 1))
    chosen = ops.constant(np.zeros((length, width)), value.get_element_type()).output(0)
    # From the last group to the first: a row belongs to the first whose end is behind it.
    for group in reversed(range(count)):
        index, axis = ctx.number(group, torch.int64), ctx.number(0, torch.int64)
        product = ops.matmul(value, ops.gather(table, index, axis), False, False)
        is_before = ops.less(places, ops.gather(bounds, index, axis))
        chosen = ops.select(is_before, product, chosen).output(0)
    return chosen
