"""Pooling: maximum, average and adaptive average.

Convolutions are in convolution.py.
"""

from __future__ import annotations

from typing import Any

import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

aten = torch.ops.aten


def _spread(values: Any, count: int) -> list[int]:
    listed = [values] if isinstance(values, int) else list(values)
    return [int(value) for value in (listed * count if len(listed) == 1 else listed)]


def _spatial(ctx: Context) -> int:
    name = str(ctx.node.target)
    return next(count for count in (1, 2, 3) if f"pool{count}d" in name)


def _rounding(ceil_mode: bool) -> str:
    return "ceil_torch" if ceil_mode else "floor"


@converter(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def convert_max_pool_with_indices(
    ctx: Context,
    self: fx.Node,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> Any:
    if ctx.is_read(1) and self.meta["val"].dtype is torch.bfloat16:
        # Refused here, where only this call leaves the program: the CPU plugin refuses the whole.
        ctx.refuse("the device has no maxima of bfloat16 with their positions")
    pooled = _max_pool(ctx, self, kernel_size, stride, padding, dilation, ceil_mode)
    return pooled.output(0), pooled.output(1) if ctx.is_read(1) else None


@converter(aten.max_pool2d.default, aten.max_pool1d.default)
def convert_max_pool(
    ctx: Context,
    self: fx.Node,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> Any:
    return _max_pool(ctx, self, kernel_size, stride, padding, dilation, ceil_mode).output(0)


def _max_pool(
    ctx: Context,
    self: fx.Node,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> Any:
    """The node: maxima, and their positions as torch counts them, within a channel."""
    spatial = _spatial(ctx)
    if ctx.rank(self) != spatial + 2:
        ctx.refuse("an input without a batch")
    kernel = _spread(kernel_size, spatial)
    strides = _spread(stride, spatial) if stride else kernel
    pads = _spread(padding, spatial)
    return ops.max_pool(
        ctx.get(self),
        strides,
        _spread(dilation, spatial),
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
        ctx.refuse("a divisor of its own")
    kernel = _spread(kernel_size, spatial)
    strides = _spread(stride, spatial) if stride else kernel
    pads = _spread(padding, spatial)
    is_padded = any(pads)
    if ceil_mode and count_include_pad and is_padded:
        windows = zip(ctx.sizes(self)[2:], kernel, strides, pads, strict=True)
        if any(n is None or (n + 2 * pad - k) % step for n, k, step, pad in windows):
            ctx.refuse("a last window beyond the padding, of which torch counts the padding alone")
    return ops.avg_pool(
        ctx.get(self),
        strides,
        pads,
        pads,
        # torch cuts a window that is larger than the padded input, which it takes with ceil_mode.
        [
            k if n is None else min(k, n + 2 * pad)
            for n, k, pad in zip(ctx.sizes(self)[2:], kernel, pads, strict=True)
        ],
        not (count_include_pad and is_padded),
        _rounding(ceil_mode),
    )


@converter(
    aten._adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool1d.default,
)
def convert_adaptive_avg_pool(ctx: Context, self: fx.Node, output_size: Any) -> Any:
    spatial = 1 if "pool1d" in str(ctx.node.target) else 2
    sizes = _spread(output_size, spatial)
    rank = ctx.rank(self)
    if all(size == 1 for size in sizes):
        return ops.reduce_mean(ctx.get(self), ctx.integers(list(range(rank - spatial, rank))), True)
    if rank != spatial + 2:
        ctx.refuse("an input without a batch")
    return ops.adaptive_avg_pool(ctx.get(self), ctx.integers(sizes))
