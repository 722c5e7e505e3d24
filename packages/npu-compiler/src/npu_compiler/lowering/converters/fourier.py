"""Fourier transforms of real numbers and of pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import openvino as ov
import openvino.opset15 as ops
from torch import fx

from npu_compiler.graph.fourier_ops import pairs_of_complex, pairs_of_real, real_of_pairs
from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import converter

__all__: list[str] = []


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
    # OpenVINO's inverse divides by the count of numbers.
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
