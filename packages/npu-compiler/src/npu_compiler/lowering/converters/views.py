"""Converters of views, permutations, slices, splits and concatenation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering.context import Context, Operand, same_size
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

aten = torch.ops.aten

# torch's "until the end" in slices.
_END = 2**63 - 1


@converter(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten._reshape_copy.default,
    aten.view_copy.default,
    compute=False,
)
def convert_view(ctx: Context, self: fx.Node, **arguments: Any) -> Any:
    sizes = arguments["size"] if "size" in arguments else arguments["shape"]
    return _reshaped(ctx, self, sizes)


@converter(aten.flatten.using_ints, compute=False)
def convert_flatten(ctx: Context, self: fx.Node, **_: Any) -> Any:
    return _reshaped(ctx, self, list(ctx.meta(ctx.node).shape))


@converter(aten.unflatten.int, compute=False)
def convert_unflatten(ctx: Context, self: fx.Node, dim: int, sizes: Any) -> Any:
    before = list(ctx.meta(self).shape)
    dim = ctx.axis(self, dim)
    return _reshaped(ctx, self, [*before[:dim], *sizes, *before[dim + 1 :]])


def _reshaped(ctx: Context, self: fx.Node, sizes: Sequence[Any]) -> Any:
    """Reshapes by constants if possible, because plugins fuse around constant shapes."""
    before, after = ctx.meta(self).shape, ctx.meta(ctx.node).shape
    if len(before) == len(after) and all(map(same_size, before, after)):
        return ctx.get(self)
    known = ctx.sizes(ctx.node)
    if all(size is not None for size in known):
        return ctx.reshape(ctx.get(self), [size for size in known if size is not None])
    pattern: list[int] = []
    for index, size in enumerate(known):
        if size is not None:
            pattern.append(size)
        elif index < len(before) and same_size(before[index], after[index]):
            pattern.append(0)
        else:
            pattern.append(-1)
    has_real_zero = any(size == 0 for size in known)
    if pattern.count(-1) <= 1 and not has_real_zero:
        return ops.reshape(ctx.get(self), ctx.integers(pattern), True)
    if any(isinstance(size, torch.SymInt) for size in sizes):
        ctx.refuse("several sizes of the result are symbolic and none has a node")
    return ops.reshape(ctx.get(self), ctx.vector(sizes), False)


@converter(aten.permute.default, aten.permute_copy.default, compute=False)
def convert_permute(ctx: Context, self: fx.Node, dims: Sequence[int]) -> Any:
    return ctx.transpose(ctx.get(self), [ctx.axis(self, dim) for dim in dims])


@converter(aten.transpose.int, aten.swapaxes.default, compute=False)
def convert_transpose(ctx: Context, self: fx.Node, **arguments: Any) -> Any:
    first, second = (value for name, value in arguments.items() if name[:-1] in ("dim", "axis"))
    order = list(range(ctx.rank(self)))
    if not order:
        return ctx.get(self)
    a, b = ctx.axis(self, first), ctx.axis(self, second)
    order[a], order[b] = order[b], order[a]
    return ctx.transpose(ctx.get(self), order)


@converter(aten.t.default, aten.numpy_T.default, compute=False)
def convert_t(ctx: Context, self: fx.Node) -> Any:
    return ctx.transpose(ctx.get(self), list(reversed(range(ctx.rank(self)))))


@converter(aten.expand.default, aten.expand_copy.default, compute=False)
def convert_expand(ctx: Context, self: fx.Node, size: Sequence[Any], **_: Any) -> Any:
    before = ctx.meta(self).shape
    added = len(size) - len(before)
    target: list[Any] = []
    for index, wanted in enumerate(size):
        is_kept = isinstance(wanted, int) and wanted == -1
        if index >= added and not is_kept:
            # An unchanged symbolic size needs no node in the target: 1 broadcasts.
            is_kept = same_size(before[index - added], ctx.meta(wanted))
        target.append(1 if is_kept else wanted)
    if added == 0 and all(isinstance(wanted, int) and wanted == 1 for wanted in target):
        return ctx.get(self)
    return ops.broadcast(ctx.get(self), ctx.vector(target), broadcast_spec="BIDIRECTIONAL")


@converter(aten.expand_as.default, compute=False)
def convert_expand_as(ctx: Context, self: fx.Node, other: fx.Node) -> Any:
    return ops.broadcast(ctx.get(self), ctx.shape(other), broadcast_spec="BIDIRECTIONAL")


@converter(aten.broadcast_tensors.default, compute=False)
def convert_broadcast_tensors(ctx: Context, tensors: Sequence[fx.Node]) -> Any:
    values = [ctx.get(part) for part in tensors]
    return tuple(_broadcast_to_all(value, values) for value in values)


def _broadcast_to_all(value: Any, others: Sequence[Any]) -> Any:
    for other in others:
        if other is not value:
            shape = ops.shape_of(other, output_type="i64")
            value = ops.broadcast(value, shape, broadcast_spec="BIDIRECTIONAL").output(0)
    return value


@converter(aten.unsqueeze.default, compute=False)
def convert_unsqueeze(ctx: Context, self: fx.Node, dim: int) -> Any:
    return ctx.unsqueeze(ctx.get(self), [dim if dim >= 0 else dim + ctx.rank(self) + 1])


@converter(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, compute=False)
def convert_squeeze(ctx: Context, self: fx.Node, dim: Any = None) -> Any:
    sizes = ctx.sizes(self)
    axes = [axis for axis in ctx.axes(self, dim) if sizes and sizes[axis] == 1]
    if not axes:
        return ctx.get(self)
    return ctx.squeeze(ctx.get(self), axes)


@converter(aten.slice.Tensor, aten.slice_copy.Tensor, compute=False)
def convert_slice(ctx: Context, self: fx.Node, dim: int, start: Any, end: Any, step: Any) -> Any:
    start = 0 if start is None else start
    end = _END if end is None else end
    axis = ctx.axis(self, dim)
    is_whole = (
        isinstance(start, int)
        and start == 0
        and step == 1
        and same_size(ctx.meta(self).shape[axis], ctx.meta(ctx.node).shape[axis])
    )
    if is_whole:
        return ctx.get(self)
    return ops.slice(
        ctx.get(self),
        ctx.vector([start]),
        ctx.vector([end]),
        ctx.vector([step]),
        ctx.integers([axis]),
    )


@converter(aten.narrow.default, compute=False)
def convert_narrow(ctx: Context, self: fx.Node, dim: int, start: Any, length: Any) -> Any:
    first = ctx.vector([start])
    end = ops.add(first, ctx.vector([length]))
    axis = ctx.integers([ctx.axis(self, dim)])
    return ops.slice(ctx.get(self), first, end, ctx.integers([1]), axis)


@converter(aten.select.int, aten.select_copy.int, compute=False)
def convert_select(ctx: Context, self: fx.Node, dim: int, index: Any) -> Any:
    axis = ctx.number(ctx.axis(self, dim), torch.int64)
    return ops.gather(ctx.get(self), ctx.get(index, torch.int64), axis)


@converter(aten.split.Tensor, aten.chunk.default, compute=False)
def convert_split(ctx: Context, self: fx.Node, dim: int, **_: Any) -> Any:
    return _split(ctx, self, dim)


@converter(aten.split_with_sizes.default, aten.split_with_sizes_copy.default, compute=False)
def convert_split_with_sizes(ctx: Context, self: fx.Node, dim: int, **_: Any) -> Any:
    return _split(ctx, self, dim)


def _split(ctx: Context, self: fx.Node, dim: int) -> Any:
    axis = ctx.axis(self, dim)
    lengths = [part.shape[axis] for part in ctx.node.meta["val"]]
    if len(lengths) == 1:
        return (ctx.get(self),)
    if not all(isinstance(length, int) for length in lengths):
        ctx.refuse("pieces of symbolic length")
    parts = ops.variadic_split(ctx.get(self), ctx.number(axis, torch.int64), ctx.integers(lengths))
    return tuple(parts.outputs())


@converter(aten.unbind.int, compute=False)
def convert_unbind(ctx: Context, self: fx.Node, dim: int) -> Any:
    axis = ctx.axis(self, dim)
    size = ctx.sizes(self)[axis]
    if size is None:
        ctx.refuse("a symbolic number of results")
    axis_node = ctx.number(axis, torch.int64)
    return tuple(
        ops.gather(ctx.get(self), ctx.number(index, torch.int64), axis_node).output(0)
        for index in range(size)
    )


@converter(aten.cat.default, aten.concat.default, aten.concatenate.default, compute=False)
def convert_cat(ctx: Context, tensors: Sequence[fx.Node], dim: int) -> Any:
    dtype = ctx.out_dtype()
    # torch accepts an empty vector among tensors of any rank.
    real = [part for part in tensors if ctx.sizes(part) != (0,) or ctx.out_rank() == 1]
    if len(real) == 1:
        return ctx.get(real[0], dtype)
    axis = ctx.axis(real[0], dim)
    if axis == ctx.out_rank() - 1:
        axis = -1  # with -1 the CPU plugin recognizes rotary embeddings (OpenVINO 2026.4.1)
    return ops.concat([ctx.get(part, dtype) for part in real], axis)


@converter(aten.stack.default, compute=False)
def convert_stack(ctx: Context, tensors: Sequence[fx.Node], dim: int) -> Any:
    dtype = ctx.out_dtype()
    axis = dim if dim >= 0 else dim + ctx.out_rank()
    parts = [ctx.unsqueeze(ctx.get(part, dtype), [axis]) for part in tensors]
    return parts[0] if len(parts) == 1 else ops.concat(parts, axis)


@converter(aten.repeat.default, compute=False)
def convert_repeat(ctx: Context, self: fx.Node, repeats: Sequence[Any]) -> Any:
    added = len(repeats) - ctx.rank(self)
    value = ctx.unsqueeze(ctx.get(self), list(range(added)))
    return ops.tile(value, ctx.vector(repeats))


@converter(aten.repeat_interleave.self_int, compute=False)
def convert_repeat_interleave(ctx: Context, self: fx.Node, repeats: Any, dim: Any, **_: Any) -> Any:
    if not isinstance(repeats, int) or dim is None:
        ctx.refuse("repeats must be a number and dim given")
    axis = ctx.axis(self, dim)
    wide = ctx.unsqueeze(ctx.get(self), [axis + 1])
    copies = [1] * (ctx.rank(self) + 1)
    copies[axis + 1] = repeats
    tiled = ops.tile(wide, ctx.integers(copies))
    shape = [0] * ctx.rank(self)
    shape[axis] = -1
    if any(size is None for size in ctx.sizes(self)) and axis != 0:
        pattern = [0] * axis + [-1]
        tail = ctx.sizes(self)[axis + 1 :]
        if any(size is None for size in tail):
            ctx.refuse("a symbolic size after the repeated one")
        pattern += [size for size in tail if size is not None]
        return ops.reshape(tiled, ctx.integers(pattern), True)
    sizes = [-1 if size is None else size for size in ctx.sizes(ctx.node)]
    if sizes.count(-1) > 1:
        ctx.refuse("several symbolic sizes")
    return ctx.reshape(tiled.output(0), sizes)


@converter(aten.flip.default, compute=False)
def convert_flip(ctx: Context, self: fx.Node, dims: Sequence[int]) -> Any:
    axes = [ctx.axis(self, dim) for dim in dims]
    if not axes:
        return ctx.get(self)
    count = len(axes)
    return ops.slice(
        ctx.get(self),
        ctx.integers([-1] * count),
        ctx.integers([-_END] * count),
        ctx.integers([-1] * count),
        ctx.integers(axes),
    )


@converter(aten.roll.default, compute=False)
def convert_roll(ctx: Context, self: fx.Node, shifts: Any, dims: Any) -> Any:
    if not dims:
        ctx.refuse("a roll over the flattened tensor")
    axes = [ctx.axis(self, dim) for dim in dims]
    return ops.roll(ctx.get(self), ctx.vector(shifts), ctx.integers(axes))


@converter(aten.pixel_shuffle.default, compute=False)
def convert_pixel_shuffle(ctx: Context, self: fx.Node, upscale_factor: int) -> Any:
    if ctx.rank(self) != 4:
        ctx.refuse("pixel_shuffle of a tensor that is not of rank 4")
    return ops.depth_to_space(ctx.get(self), "depth_first", upscale_factor)


@converter(aten.slice_scatter.default, compute=False)
def convert_slice_scatter(
    ctx: Context, self: Any, src: Any, dim: int, start: Any, end: Any, step: Any
) -> Any:
    axis = ctx.axis(self, dim)
    size, ends = ctx.sizes(self)[axis], (start, end, step)
    if size is not None and all(value is None or type(value) is int for value in ends):
        # An NPU's compiler has no SliceScatter, and accepts ScatterUpdate with constant indices.
        places = list(range(size))[slice(start, end, step)]
        if places:
            return _written(ctx, self, ctx.get(src), places, axis)
    return ops.slice_scatter(
        ctx.get(self),
        ctx.get(src),
        ctx.vector([0 if start is None else start]),
        ctx.vector([_END if end is None else end]),
        ctx.vector([step]),
        ctx.integers([axis]),
    )


@converter(aten.select_scatter.default, compute=False)
def convert_select_scatter(ctx: Context, self: Any, src: Any, dim: int, index: Any) -> Any:
    axis = ctx.axis(self, dim)
    size = ctx.sizes(self)[axis]
    if not isinstance(index, int) or size is None:
        ctx.refuse("a symbolic position")
    first = index + size if index < 0 else index
    return _written(ctx, self, ctx.unsqueeze(ctx.get(src), [axis]), [first], axis)


def _written(ctx: Context, self: Any, values: Any, places: Sequence[int], axis: int) -> Any:
    """Returns a tensor with other values at these positions of an axis."""
    at = ctx.number(axis, torch.int64)
    return ops.scatter_update(ctx.get(self), ctx.integers(places), values, at)


@converter(aten.unfold.default, compute=False)
def convert_unfold(ctx: Context, self: fx.Node, dimension: int, size: int, step: int) -> Any:
    axis = ctx.axis(self, dimension)
    length = ctx.sizes(self)[axis]
    if length is None:
        ctx.refuse("windows over a symbolic size")
    count = math.floor((length - size) / step) + 1
    order = [axis for axis in range(ctx.rank(self) + 1) if axis != ctx.axis(self, dimension) + 1]
    indices = [first * step + offset for first in range(count) for offset in range(size)]
    table = ctx.reshape(ctx.integers(indices), [count, size])
    windows = ops.gather(ctx.get(self), table, ctx.number(axis, torch.int64))
    return ctx.transpose(windows.output(0), [*order, axis + 1])


@converter(aten.as_strided.default, compute=False)
def convert_as_strided(
    ctx: Context, self: fx.Node, size: Any, stride: Any, storage_offset: Any
) -> Any:
    before = ctx.sizes(self)
    plain = [*size, *stride, storage_offset or 0, *before]
    if not all(isinstance(value, int) for value in plain):
        ctx.refuse("symbolic strides")
    meta = ctx.meta(self)
    if not meta.is_contiguous() or (storage_offset or 0) != meta.storage_offset():
        ctx.refuse("strides that do not match the memory layout")
    table = torch.arange(meta.numel()).as_strided(size, stride)
    flat = ctx.reshape(ctx.get(self), [-1])
    return ops.gather(flat, ctx.constant(table.contiguous()), ctx.number(0, torch.int64))


@converter(aten.linspace.default, compute=False)
def convert_linspace(ctx: Context, start: Operand, end: Operand, steps: Any, **_: Any) -> Any:
    if not isinstance(start, (int, float)) or not isinstance(end, (int, float)):
        ctx.refuse("bounds that are not plain numbers")
    if not isinstance(steps, int):
        ctx.refuse("a symbolic number of steps")
    return ctx.constant(torch.linspace(start, end, steps, dtype=ctx.out_dtype()))
