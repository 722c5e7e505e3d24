"""Gathers and scatters by index tensors, embeddings and their gradients."""

from __future__ import annotations

from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from openvino.opset4 import scatter_nd_update
from torch import fx

from npu_compiler.lowering.context import Context, Operand, same_size
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

aten = torch.ops.aten


@converter(aten.embedding.default)
def convert_embedding(ctx: Context, weight: fx.Node, indices: fx.Node, **_: Any) -> Any:
    return ops.gather(ctx.get(weight), ctx.get(indices), ctx.number(0, torch.int64))


@converter(aten.embedding_dense_backward.default)
def convert_embedding_backward(
    ctx: Context,
    grad_output: fx.Node,
    indices: fx.Node,
    num_weights: Any,
    padding_idx: Any,
    scale_grad_by_freq: bool,
) -> Any:
    ctx.refuse("scattered sums are faster on the host")


@converter(aten.index_select.default)
def convert_index_select(ctx: Context, self: fx.Node, dim: int, index: fx.Node) -> Any:
    if ctx.rank(self) == 0:
        ctx.refuse("a scalar cannot be gathered from")
    indices = ctx.get(index)
    if ctx.rank(index) == 0:
        indices = ctx.reshape(indices, [1])
    return ops.gather(ctx.get(self), indices, ctx.number(ctx.axis(self, dim), torch.int64))


@converter(aten.gather.default)
def convert_gather(ctx: Context, self: fx.Node, dim: int, index: fx.Node, **_: Any) -> Any:
    if ctx.rank(self) == 0 or ctx.rank(index) == 0:
        ctx.refuse("a scalar cannot be gathered from")
    return ops.gather_elements(ctx.get(self), ctx.get(index), ctx.axis(self, dim))


def _rule_no_masks(node: fx.Node, indices: Any, **_: Any) -> str | None:
    for index in indices:
        if index is not None and index.meta["val"].dtype in (torch.bool, torch.uint8):
            return "a mask as an index gives a data-dependent size"
    return None


@converter(aten.index.Tensor, aten._unsafe_index.Tensor, rule=_rule_no_masks)
def convert_index(ctx: Context, self: fx.Node, indices: Any) -> Any:
    given = [axis for axis, index in enumerate(indices) if index is not None]
    if not given:
        return ctx.get(self)
    if len(given) == 1:
        axis = ctx.number(given[0], torch.int64)
        return ops.gather(ctx.get(self), ctx.get(indices[given[0]]), axis)
    starts = _outer_starts(ctx, indices, given)
    if starts is not None:
        return _index_outer(ctx, self, indices, given, starts)
    return _index_many(ctx, self, indices, given)


def _outer_starts(ctx: Context, indices: Any, given: list[int]) -> list[int] | None:
    """Returns the first dimension of each index, if no two share one and they are in order.

    Masks index rows and columns so: (batch, 1, 1, 1) and (1, 1, 1, keys).
    """
    if given != list(range(given[0], given[0] + len(given))):
        return None
    width = max(ctx.rank(indices[axis]) for axis in given)
    starts, end = [0], 0
    for number, axis in enumerate(given):
        shape = ctx.meta(indices[axis]).shape
        real = [
            width - len(shape) + dim for dim, size in enumerate(shape) if not same_size(size, 1)
        ]
        if number and (not real or real[0] < end):
            return None
        starts += real[:1] if number else []
        end = real[-1] + 1 if real else end
    return starts


def _index_outer(
    ctx: Context, self: fx.Node, indices: Any, given: list[int], starts: list[int]
) -> ov.Output:
    """Gathers along one axis after the other, without a table of positions."""
    width = max(ctx.rank(indices[axis]) for axis in given)
    value = ctx.get(self)
    for axis, start, end in zip(given, starts, [*starts[1:], width], strict=True):
        index, lead = ctx.get(indices[axis]), width - ctx.rank(indices[axis])
        outside = [dim - lead for dim in range(lead, width) if not start <= dim < end]
        index = ctx.squeeze(index, outside)
        index = ctx.unsqueeze(index, list(range(min(lead, end) - start)))
        where = ctx.number(given[0] + start, torch.int64)
        value = ops.gather(value, index, where).output(0)
    return value


def _index_many(ctx: Context, self: fx.Node, indices: Any, given: list[int]) -> Any:
    """Gathers by several index tensors, which are broadcast and index their axes together."""
    rank = ctx.rank(self)
    others = [axis for axis in range(rank) if axis not in given]
    value = ctx.transpose(ctx.get(self), [*given, *others])
    table = _index_table(ctx, self, indices, given)
    gathered = ops.gather_nd(value, table).output(0)
    width = max(ctx.rank(indices[axis]) for axis in given)
    is_together = given == list(range(given[0], given[0] + len(given)))
    if not is_together or given[0] == 0:
        return gathered
    # The result of adjacent index tensors takes the place of their axes.
    front = given[0]
    order = [width + axis for axis in range(front)]
    order += list(range(width))
    order += [width + axis for axis in range(front, len(others))]
    return ctx.transpose(gathered, order)


def _index_table(ctx: Context, self: fx.Node, indices: Any, given: list[int]) -> ov.Output:
    """Returns positions, (..., number of index tensors); negative ones count from the end."""
    parts = []
    for axis in given:
        index = ctx.get(indices[axis], torch.int64)
        size = ctx.reshape(ctx.size(self, axis), [])
        wrapped = ops.add(index, size)
        is_negative = ops.less(index, ctx.number(0, torch.int64))
        parts.append(ops.select(is_negative, wrapped, index).output(0))
    together = parts[0]
    for part in parts[1:]:
        together = ops.add(together, part).output(0)
    shape = ops.shape_of(together, output_type="i64")
    wide = [ops.broadcast(part, shape, broadcast_spec="BIDIRECTIONAL").output(0) for part in parts]
    last = ctx.number(-1, torch.int64)
    return ops.concat([ops.unsqueeze(part, last).output(0) for part in wide], -1).output(0)


@converter(aten.scatter.src, aten.scatter.value)
def convert_scatter(ctx: Context, self: fx.Node, dim: int, index: fx.Node, **given: Any) -> Any:
    if ctx.rank(self) == 0:
        ctx.refuse("a scalar cannot be scattered into")
    dtype = ctx.out_dtype()
    axis = ctx.number(ctx.axis(self, dim), torch.int64)
    indices = ctx.get(index)
    if "src" in given:
        if ctx.sizes(given["src"]) != ctx.sizes(index):
            ctx.refuse("a source that is larger than the index")
        updates: Any = ctx.get(given["src"], dtype)
    else:
        updates = ops.broadcast(ctx.get(given["value"], dtype), ctx.shape(index))
    return ops.scatter_elements_update(ctx.get(self), indices, updates, axis)


@converter(aten.index_copy.default)
def convert_index_copy(
    ctx: Context, self: fx.Node, dim: int, index: fx.Node, source: fx.Node
) -> Any:
    axis = ctx.number(ctx.axis(self, dim), torch.int64)
    return ops.scatter_update(ctx.get(self), ctx.get(index), ctx.get(source), axis)


def _is_fill(node: fx.Node, indices: Any, values: Any, accumulate: bool = False) -> bool:
    """Whether one mask over the first axes selects where to write one number, as in x[mask] = 0."""
    if accumulate or len(indices) != 1 or indices[0] is None:
        return False
    mask, value = indices[0].meta["val"], values.meta["val"]
    return mask.dtype is torch.bool and value.dim() == 0


def _rule_index_put(
    node: fx.Node, indices: Any, values: Any, accumulate: bool = False, **rest: Any
) -> str | None:
    if _is_fill(node, indices, values, accumulate):
        return None
    return _rule_no_masks(node, indices, **rest)


@converter(aten.index_put.default, rule=_rule_index_put)
def convert_index_put(
    ctx: Context, self: fx.Node, indices: Any, values: Operand, accumulate: bool, **_: Any
) -> Any:
    if _is_fill(self, indices, values, accumulate):
        mask = ctx.get(indices[0])
        for axis in range(ctx.rank(indices[0]), ctx.rank(self)):
            mask = ops.unsqueeze(mask, ctx.number(axis, torch.int64)).output(0)
        return ops.select(mask, ctx.get(values, ctx.out_dtype()), ctx.get(self))
    if accumulate:
        ctx.refuse("scattered sums are faster on the host")
    given = [axis for axis, index in enumerate(indices) if index is not None]
    if given != list(range(len(given))) or not given:
        ctx.refuse("index tensors that do not start at the first axis")
    table = _index_table(ctx, self, indices, given)
    width = max(ctx.rank(indices[axis]) for axis in given)
    rest = ctx.rank(self) - len(given)
    shape = ops.shape_of(table, output_type="i64")
    zero = ctx.number(0, torch.int64)
    lead = ops.gather(shape, ctx.integers(list(range(width))), zero).output(0)
    pieces = [lead] + [ctx.size(self, len(given) + axis) for axis in range(rest)]
    target = pieces[0] if len(pieces) == 1 else ops.concat(pieces, 0).output(0)
    updates = ops.broadcast(ctx.get(values, ctx.out_dtype()), target)
    return scatter_nd_update(ctx.get(self), table, updates)


@converter(aten.one_hot.default)
def convert_one_hot(ctx: Context, self: fx.Node, num_classes: Any) -> Any:
    if not isinstance(num_classes, int) or num_classes < 0:
        ctx.refuse("the number of classes depends on data")
    on, off = ctx.number(1, torch.int64), ctx.number(0, torch.int64)
    return ops.one_hot(ctx.get(self), ctx.number(num_classes, torch.int64), on, off, -1)
