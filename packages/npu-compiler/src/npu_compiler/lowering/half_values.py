"""Rounds half-precision values as torch does if a program reads them in a wider type.

A device may compute float16 and bfloat16 in float32, and omit a downcast followed by an upcast (CPU
plugin, OpenVINO 2026.4.1). A value then keeps digits that torch rounds off, and a float16 above
65504 stays finite. The forms here round between the value and its reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.graph.casts_and_moves import CASTS, MOVES
from npu_compiler.graph.nodes import is_call

__all__ = ["is_narrower", "read_wide"]

# Makes a constant of float32.
_Number: TypeAlias = Callable[[float], ov.Output]

# dtype -> bits of the significand after the first, the magnitude below which the spacing is
# constant, and the least magnitude that rounds to infinity. bfloat16 has the exponents of float32;
# below that magnitude its spacing is subnormal, which processors flush to 0.
_FORMATS = {
    torch.float16: (10, 2.0**-14, 65520.0),
    torch.bfloat16: (7, 2.0**-118, math.inf),
}
# Casts that change neither float16 nor bfloat16.
_EXACT_BEFORE = (torch.bool, torch.uint8, torch.int8)


def is_narrower(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether a half-precision value is read in a wider type."""
    return source in _FORMATS and target not in (source, torch.bool)


def read_wide(node: fx.Node, value: ov.Output, *, number: _Number, rounds_casts: bool) -> ov.Output:
    """Returns a node's value in float32, rounded to torch's half precision.

    Args:
        node: of dtype float16 or bfloat16.
        value: its lowered value.
        number: makes a constant of float32.
        rounds_casts: whether the program must round casts to half precision.
    """
    dtype: torch.dtype = node.meta["val"].dtype
    wide = ops.convert(value, ov.Type.f32).output(0)
    origin = _origin(node)
    if origin is None:
        return wide
    if rounds_casts and _is_cast(origin):
        wide = _rounded(number, wide, dtype)
    if dtype is not torch.float16:
        return wide
    # In a half-precision program the constant 65520 would be infinite.
    size = ops.abs(wide)
    is_over = (
        ops.greater_equal(size, number(_FORMATS[dtype][2]))
        if rounds_casts
        else ops.greater(size, number(torch.finfo(dtype).max))
    )
    # Such a program has no infinite float32 constants either.
    return ops.divide(wide, ops.select(is_over, number(0.0), number(1.0))).output(0)


def _origin(node: fx.Node) -> fx.Node | None:
    """Returns the call that computes a node's value; None for an input or a tensor of the graph."""
    while node.op == "call_function":
        source = node.args[0] if node.args else None
        is_same = node.target in MOVES or (node.target in CASTS and not _is_cast(node))
        if not is_same or not isinstance(source, fx.Node):
            return node
        node = source
    return None


def _is_cast(node: fx.Node) -> bool:
    """Whether a call casts to another floating type."""
    source = node.args[0] if node.args else None
    if not is_call(node, *CASTS) or not isinstance(source, fx.Node):
        return False
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    return before.dtype is not after.dtype and before.dtype not in _EXACT_BEFORE


def _rounded(number: _Number, wide: ov.Output, dtype: torch.dtype) -> ov.Output:
    """Rounds float32 to the nearest number of a narrower type, ties to even.

    The spacing of such numbers follows from the largest power of two up to the value. Veltkamp's
    splitting computes it, or the next one (T. J. Dekker, "A floating-point technique for extending
    the available precision", 1971).
    """
    bits, smallest, limit = _FORMATS[dtype]
    shrunk, scale = wide, None
    if dtype is torch.bfloat16:
        # The splitting would overflow.
        is_large = ops.greater(ops.abs(wide), number(2.0**60))
        scale = ops.select(is_large, number(2.0**64), number(1.0)).output(0)
        shrunk = ops.divide(wide, scale).output(0)
    size = ops.maximum(ops.abs(shrunk), number(smallest))
    split = ops.multiply(size, number(2.0**23 + 1))
    power = ops.subtract(split, ops.subtract(split, size))
    half = ops.multiply(power, number(0.5))
    unit = ops.multiply(ops.select(ops.greater(power, size), half, power), number(2.0**-bits))
    near = ops.multiply(ops.round(ops.divide(shrunk, unit), "half_to_even"), unit).output(0)
    if scale is not None:
        near = ops.multiply(near, scale).output(0)
    largest = min(limit, torch.finfo(torch.float32).max)
    return ops.select(ops.less(ops.abs(wide), number(largest)), near, wide).output(0)
