"""Padding with a value or by mirroring, and the gradients of slices, which pad with zeros.

Views, slices and concatenation are in views.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

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
