"""Values of half precision as torch has them where a program reads them in a wider type.

A device may compute float16 and bfloat16 in float32, and leaves out a cast down that a cast up
follows (CPU plugin, OpenVINO 2026.4.1). A value then keeps digits that torch rounds off, and a
float16 beyond 65504 stays finite. The forms here put that right between the value and its reader.
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

# dtype -> bits of a significand behind the first, the magnitude below which the distance of numbers
# is the same, and the least magnitude that is rounded to infinity. bfloat16 has the exponents of
# float32; below that magnitude its distances would be numbers that processors take for 0.
_FORMATS = {
    torch.float16: (10, 2.0**-14, 65520.0),
    torch.bfloat16: (7, 2.0**-118, math.inf),
}
# A cast that changes no float16 nor bfloat16.
_EXACT_BEFORE = (torch.bool, torch.uint8, torch.int8)


def is_narrower(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether a value of half precision is read in a type that shows more of it."""
    return source in _FORMATS and target not in (source, torch.bool)


def read_wide(node: fx.Node, value: ov.Output, *, number: _Number, rounds_casts: bool) -> ov.Output:
    """Returns a node's value in float32, as torch's half precision has it.

    Args:
        node: of dtype float16 or bfloat16.
        value: what it is lowered to.
        number: makes a constant of float32.
        rounds_casts: whether the program must round what was cast down.
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
    # In a program of half precision a constant of 65520 would be infinite itself.
    size = ops.abs(wide)
    is_over = (
        ops.greater_equal(size, number(_FORMATS[dtype][2]))
        if rounds_casts
        else ops.greater(size, number(torch.finfo(dtype).max))
    )
    # Such a program has no infinite constants of float32 either.
    return ops.divide(wide, ops.select(is_over, number(0.0), number(1.0))).output(0)


def _origin(node: fx.Node) -> fx.Node | None:
    """The call that computes what a node shows; None for an input or a tensor of the graph."""
    while node.op == "call_function":
        source = node.args[0] if node.args else None
        is_same = node.target in MOVES or (node.target in CASTS and not _is_cast(node))
        if not is_same or not isinstance(source, fx.Node):
            return node
        node = source
    return None


def _is_cast(node: fx.Node) -> bool:
    """Whether a call gives another floating type than it takes."""
    source = node.args[0] if node.args else None
    if not is_call(node, *CASTS) or not isinstance(source, fx.Node):
        return False
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    return before.dtype is not after.dtype and before.dtype not in _EXACT_BEFORE


def _rounded(number: _Number, wide: ov.Output, dtype: torch.dtype) -> ov.Output:
    """Rounds float32 to the nearest number of a narrower type, ties to even.

    The distance of such numbers follows from the largest power of two up to the value. Veltkamp's
    splitting gives that, or the next one (T. J. Dekker, "A floating-point technique for extending
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
