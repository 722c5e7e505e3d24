"""Padding with a value or by mirroring; gradients of slices and folded blocks, padded with zeros.

Views, slices and concatenation are in views.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.graph.nodes import is_static
from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import converter

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


def _rule_col2im(node: fx.Node, self: fx.Node, **_: Any) -> str | None:
    return None if is_static(self) else "blocks of varying sizes"


def _pads(ctx: Context, self: fx.Node, pad: Sequence[Any]) -> tuple[ov.Output, ov.Output]:
    """Torch pads in pairs from the last axis, OpenVINO in two vectors from the first."""
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


@converter(aten.col2im.default, rule=_rule_col2im, host_is_better=True)
def convert_col2im(
    ctx: Context,
    self: fx.Node,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> ov.Output:
    """Each element of the blocks is a plane: spread by the stride, moved, and added."""
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
    """Puts zeros between the elements along an axis, and the first at a place of `size` places."""
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
