"""Converters of pooling, resizing and padding."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.graph.channels_last import LEAST_CHANNELS
from npu_compiler.graph.nodes import is_static
from npu_compiler.lowering import nan
from npu_compiler.lowering.context import Context
from npu_compiler.lowering.converters.convolution import spread
from npu_compiler.lowering.registry import converter

# Views are in views.py.

__all__: list[str] = []

aten = torch.ops.aten


@converter(aten.constant_pad_nd.default, aten.pad.default, compute=False)
def convert_pad(ctx: Context, self: fx.Node, pad: Any, **arguments: Any) -> Any:
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}.get(
        arguments.get("mode", "constant")
    )
    if mode is None:
        ctx.refuse(f"padding mode {arguments['mode']!r}")
    value = arguments.get("value")
    begins, ends = _pads(ctx, self, pad)
    if mode == "constant":
        fill = ctx.get(0 if value is None else value, ctx.out_dtype())
        return ops.pad(ctx.get(self), begins, ends, mode, fill)
    return ops.pad(ctx.get(self), begins, ends, mode)


def _pads(ctx: Context, self: fx.Node, pad: Sequence[Any]) -> tuple[ov.Output, ov.Output]:
    """Converts torch's pairs from the last axis to OpenVINO's vectors from the first."""
    pairs = [(pad[index], pad[index + 1]) for index in range(0, len(pad), 2)]
    rest = ctx.rank(self) - len(pairs)
    begins = [0] * rest + [begin for begin, _ in reversed(pairs)]
    ends = [0] * rest + [end for _, end in reversed(pairs)]
    return ctx.vector(begins), ctx.vector(ends)


@converter(
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    compute=False,
)
def convert_mirror_pad(ctx: Context, self: fx.Node, padding: Any) -> Any:
    mode = "reflect" if "reflection" in str(ctx.node.target) else "edge"
    begins, ends = _pads(ctx, self, padding)
    return ops.pad(ctx.get(self), begins, ends, mode)


@converter(aten.slice_backward.default, compute=False)
def convert_slice_backward(
    ctx: Context, grad_output: Any, input_sizes: Any, dim: int, start: Any, end: Any, step: Any
) -> Any:
    if step != 1:
        ctx.refuse("the gradient of a slice with a step")
    sizes = ctx.sizes(ctx.node)
    part = ctx.sizes(grad_output)
    axis = ctx.axis(grad_output, dim)
    whole, length = sizes[axis], part[axis]
    if whole is None or length is None or not isinstance(start, int):
        ctx.refuse("the gradient of a slice of symbolic size")
    first = min(max(start + whole if start < 0 else start, 0), whole)
    begins, ends = [0] * len(sizes), [0] * len(sizes)
    begins[axis], ends[axis] = first, whole - first - length
    zero = ctx.number(0, ctx.out_dtype())
    return ops.pad(ctx.get(grad_output), ctx.integers(begins), ctx.integers(ends), "constant", zero)


@converter(aten.select_backward.default, compute=False)
def convert_select_backward(
    ctx: Context, grad_output: Any, input_sizes: Any, dim: int, index: Any
) -> Any:
    sizes = ctx.sizes(ctx.node)
    axis = dim + len(sizes) if dim < 0 else dim
    whole = sizes[axis]
    if whole is None or not isinstance(index, int):
        ctx.refuse("the gradient of a selection of symbolic size")
    first = index + whole if index < 0 else index
    begins, ends = [0] * len(sizes), [0] * len(sizes)
    begins[axis], ends[axis] = first, whole - first - 1
    zero = ctx.number(0, ctx.out_dtype())
    wide = ctx.unsqueeze(ctx.get(grad_output), [axis])
    return ops.pad(wide, ctx.integers(begins), ctx.integers(ends), "constant", zero)


@converter(
    aten.col2im.default,
    rule=lambda node, self, **_: None if is_static(self) else "blocks of dynamic size",
    host_is_better=True,
)
def convert_col2im(
    ctx: Context,
    self: fx.Node,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> ov.Output:
    """Adds one plane per element of the blocks, dilated by the stride and shifted."""
    sizes = [int(size) for size in ctx.meta(self).shape]
    lead, (rows, columns) = sizes[:-2], kernel_size
    counts = [
        (output_size[axis] + 2 * padding[axis] - dilation[axis] * (kernel_size[axis] - 1) - 1)
        // stride[axis]
        + 1
        for axis in (0, 1)
    ]
    channels = sizes[-2] // (rows * columns)
    blocks = ctx.reshape(ctx.get(self), [*lead, channels, rows * columns, *counts])
    whole: ov.Output | None = None
    for place in range(rows * columns):
        index = (place // columns, place % columns)
        plane = ops.gather(
            blocks, ctx.number(place, torch.int64), ctx.number(-3, torch.int64)
        ).output(0)
        for axis in (0, 1):
            begin = index[axis] * dilation[axis] - padding[axis]
            plane = _spread(ctx, plane, axis - 2, stride[axis], begin, output_size[axis])
        whole = plane if whole is None else ops.add(whole, plane).output(0)
    assert whole is not None
    return whole


def _spread(
    ctx: Context, plane: ov.Output, axis: int, stride: int, begin: int, size: int
) -> ov.Output:
    """Puts zeros between the elements along an axis of a new size, and the first at a position."""
    shape = [int(one) for one in plane.get_shape()]
    rank, at = len(shape), len(shape) + axis
    zero = ctx.number(0, ctx.out_dtype())
    if stride > 1:
        wide = ctx.unsqueeze(plane, [at + 1])
        ends = [stride - 1 if one == at + 1 else 0 for one in range(rank + 1)]
        wide = ops.pad(wide, ctx.integers([0] * (rank + 1)), ctx.integers(ends), "constant", zero)
        shape[at] *= stride
        plane = ctx.reshape(wide.output(0), shape)
    begins = [begin if one == at else 0 for one in range(rank)]
    ends = [size - begin - shape[at] if one == at else 0 for one in range(rank)]
    return ops.pad(plane, ctx.integers(begins), ctx.integers(ends), "constant", zero).output(0)


# Convolutions are in convolution.py.

_PLACES = 25  # size of a window, above which the device computes the positions of maxima
_OUTSIDE = -1  # marks a position in the padding


def _spatial(ctx: Context) -> int:
    name = str(ctx.node.target)
    return next(count for count in (1, 2, 3) if f"pool{count}d" in name)


def _rounding(ceil_mode: bool) -> str:
    return "ceil_torch" if ceil_mode else "floor"


def _has_positions(node: fx.Node) -> bool:
    """Whether positions of maxima are used, for many channels or dynamic shapes.

    For (64, 64, 24, 24) a program takes 6.3 ms, the host 2.4 ms. For dynamic shapes the CPU plugin
    has only reference code: 65 ms instead of 7 ms for 12 images of 16 x 64 x 64 (two shared
    Sapphire Rapids cores, 2026-11-28).
    """
    is_read = any(user.target is operator.getitem and user.args[1] == 1 for user in node.users)
    source = node.args[0]
    if not is_read or not isinstance(source, fx.Node):
        return False
    shape = source.meta["val"].shape
    return not is_static(source) or (len(shape) == 4 and shape[1] >= LEAST_CHANNELS)


@converter(
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
    host_is_better=_has_positions,
)
def convert_max_pool_with_indices(
    ctx: Context, self: fx.Node, ceil_mode: bool, **windows: Any
) -> Any:
    maxima = convert_max_pool(ctx, self, ceil_mode=ceil_mode, **windows)
    if not ctx.is_read(1):
        return maxima, None
    positions = _positions(ctx, self, maxima, **windows)
    if positions is not None:
        return maxima, positions
    if self.meta["val"].dtype is torch.bfloat16:
        # Refused here, so that only this call leaves the program: the CPU plugin would refuse all
        # of it.
        ctx.refuse("the device has no bfloat16 maxima with positions")
    value = ctx.get(self)
    if nan.is_real(value) and nan.is_exact(ctx):
        inf = ctx.number(math.inf, ctx.dtype(self))
        value = ops.select(ops.not_equal(value, value), inf, value).output(0)
    return maxima, _max_pool(ctx, self, value, ceil_mode=ceil_mode, **windows).output(1)


def _positions(
    ctx: Context,
    self: fx.Node,
    maxima: ov.Output,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
) -> Any:
    """Returns the position of each maximum of a 2d pooling in its plane, from slices.

    The CPU plugin computes the node's second output by reference code: 95 ms for windows of 2 x 2
    over (64, 64, 24, 24) on one core; this takes 6 ms. None for large windows and dynamic shapes.
    """
    kernel, sizes = spread(kernel_size, 2), ctx.sizes(self)[2:]
    if _spatial(ctx) != 2 or not 1 < kernel[0] * kernel[1] <= _PLACES or None in sizes:
        return None
    results = [n.get_length() for n in list(maxima.get_partial_shape())[2:]]
    strides = spread(stride, 2) if stride else kernel
    pads, steps = spread(padding, 2), spread(dilation, 2)
    reach = [
        (count - 1) * stride + (k - 1) * step + 1
        for count, stride, k, step in zip(results, strides, kernel, steps, strict=True)
    ]
    data = ctx.get(self)
    is_padded = any(pads) or any(end > size for end, size in zip(reach, sizes, strict=True))
    outside = ctx.number(_OUTSIDE, torch.int64)
    if is_padded:
        after = [max(end - pad - n, 0) for end, pad, n in zip(reach, pads, sizes, strict=True)]
        lowest = ctx.number(-math.inf, self.meta["val"].dtype)
        before, behind = ctx.integers([0, 0, *pads]), ctx.integers([0, 0, *after])
        data = ops.pad(data, before, behind, "constant", lowest).output(0)
    rows, columns = (np.arange(n) * step for n, step in zip(results, strides, strict=True))
    best: Any = None
    chosen: Any = None
    for i, j in itertools.product(*(range(k) for k in kernel)):
        top, left = i * steps[0], j * steps[1]
        here = ops.slice(
            data,
            ctx.integers([top, left]),
            ctx.integers([top + int(rows[-1]) + 1, left + int(columns[-1]) + 1]),
            ctx.integers(strides),
            ctx.integers([2, 3]),
        )
        at, across = (rows + top - pads[0])[:, None], (columns + left - pads[1])[None]
        is_inside = (at >= 0) & (at < sizes[0]) & (across >= 0) & (across < sizes[1])
        plane = np.where(is_inside, at * sizes[1] + across, _OUTSIDE)
        number = ops.constant(plane.astype(np.int64)[None, None])
        if best is None:
            best, chosen = here, number
            continue
        # Only a larger value replaces an earlier one: of equal values the first stays, of NaNs the
        # last, and the padding is never chosen.
        is_better = ops.logical_or(ops.greater(here, best), ops.not_equal(here, here))
        if is_padded:
            is_better = ops.logical_or(is_better, ops.equal(chosen, outside))
        best = ops.select(is_better, here, best)
        chosen = ops.select(is_better, number, chosen)
    return chosen


@converter(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def convert_adaptive_max_pool(ctx: Context, self: fx.Node, output_size: Any) -> Any:
    """Lowers to windows of one size; shorter ones repeat their last entry."""
    spatial = _spatial(ctx)
    if ctx.rank(self) != spatial + 2:
        ctx.refuse("an input without a batch")
    value, kernel, is_even = ctx.get(self), [], True
    counts = spread(output_size, spatial)
    for axis, (size, count) in enumerate(zip(ctx.sizes(self)[2:], counts, strict=True), start=2):
        if size is None or not count:
            ctx.refuse("windows of unknown size or without elements")
        entries = _entries_of_windows(size, count)
        kernel.append(entries.shape[1])
        if entries.size != size:
            is_even = False
            places = ctx.integers(entries.flatten().tolist())
            value = ops.gather(value, places, ctx.integers([axis])).output(0)
    windows = {"kernel_size": kernel, "stride": kernel, "padding": 0, "dilation": 1}
    maxima = convert_max_pool(ctx, self, value=value, ceil_mode=False, **windows)
    if not ctx.is_read(1):
        return maxima, None
    if not is_even or spatial != 2:
        ctx.refuse("positions in windows that differ in size, or in three dimensions")
    positions = _positions(ctx, self, maxima, **windows)
    if positions is None:
        ctx.refuse("positions in windows of one element or more than 25")
    return maxima, positions


def _entries_of_windows(size: int, count: int) -> Any:
    """Returns the positions of torch's adaptive windows, (count, longest)."""
    order = np.arange(count)
    first, last = order * size // count, -(-(order + 1) * size // count) - 1
    longest = int((last - first).max()) + 1
    return np.minimum(first[:, None] + np.arange(longest), last[:, None])


@converter(aten.max_pool2d.default, aten.max_pool1d.default)
def convert_max_pool(
    ctx: Context, self: fx.Node, *, value: ov.Output | None = None, **windows: Any
) -> ov.Output:
    """Returns window maxima, including NaN and infinities, of self or of `value`."""
    value = ctx.get(self) if value is None else value
    result = _max_pool(ctx, self, value, **windows).output(0)
    if not nan.is_real(value) or nan.is_bounded_below(ctx, self) or not nan.is_exact(ctx):
        return result
    mark = nan.marks(ctx, value, is_max=True)
    found = _max_pool(ctx, self, mark, **windows).output(0)
    return nan.restored(ctx, result, found, is_max=True)


def _max_pool(
    ctx: Context,
    self: fx.Node,
    value: ov.Output,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> Any:
    """Adds the node: maxima, and their positions within a channel as in torch."""
    spatial = _spatial(ctx)
    if ctx.rank(self) != spatial + 2:
        ctx.refuse("an input without a batch")
    kernel = spread(kernel_size, spatial)
    strides = spread(stride, spatial) if stride else kernel
    pads = spread(padding, spatial)
    return ops.max_pool(
        value,
        strides,
        spread(dilation, spatial),
        pads,
        pads,
        kernel,
        _rounding(ceil_mode),
        index_element_type="i64",
        axis=2,
    )


@converter(aten.avg_pool2d.default, aten.avg_pool1d.default, aten.avg_pool3d.default)
def convert_avg_pool(
    ctx: Context,
    self: fx.Node,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    **arguments: Any,
) -> Any:
    spatial = _spatial(ctx)
    if ctx.rank(self) != spatial + 2:
        ctx.refuse("an input without a batch")
    if arguments.get("divisor_override") is not None:
        ctx.refuse("a divisor override")
    kernel = spread(kernel_size, spatial)
    strides = spread(stride, spatial) if stride else kernel
    pads = spread(padding, spatial)
    is_padded = any(pads)
    if ceil_mode and count_include_pad and is_padded:
        windows = zip(ctx.sizes(self)[2:], kernel, strides, pads, strict=True)
        if any(n is None or (n + 2 * pad - k) % step for n, k, step, pad in windows):
            ctx.refuse("a last window beyond the padding, in which torch counts only the padding")
    return ops.avg_pool(
        ctx.get(self),
        strides,
        pads,
        pads,
        # With ceil_mode, torch accepts a window larger than the padded input, and crops it.
        [
            k if n is None else min(k, n + 2 * pad)
            for n, k, pad in zip(ctx.sizes(self)[2:], kernel, pads, strict=True)
        ],
        not (count_include_pad and is_padded),
        _rounding(ceil_mode),
    )


@converter(
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool1d.default,
)
def convert_adaptive_avg_pool(ctx: Context, self: fx.Node, output_size: Any) -> Any:
    spatial = _spatial(ctx)
    sizes = spread(output_size, spatial)
    rank = ctx.rank(self)
    if all(size == 1 for size in sizes):
        return ops.reduce_mean(ctx.get(self), ctx.integers(list(range(rank - spatial, rank))), True)
    if rank != spatial + 2:
        ctx.refuse("an input without a batch")
    return ops.adaptive_avg_pool(ctx.get(self), ctx.integers(sizes))
