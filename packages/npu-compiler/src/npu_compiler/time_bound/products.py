"""How many products of numbers the operations of the array take, each at the least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import openvino as ov

__all__ = ["Products", "count_products"]

# What lies between weights of few bits and the operation that multiplies them.
_UNPACKING = frozenset(
    {"Convert", "Multiply", "Reshape", "Squeeze", "Subtract", "Transpose", "Unsqueeze"}
)
_NARROW = frozenset(
    {"boolean", "f4e2m1", "f8e4m3", "f8e5m2", "i4", "i8", "nf4", "u1", "u2", "u3", "u4", "u6", "u8"}
)


@dataclass(frozen=True)
class Products:
    """The products of one operation.

    Attributes:
        node: its name in the model.
        operation: its type.
        count: multiplications with an addition each; what falls on padding or behind a causal
            mask is not counted.
        is_narrow: whether an operand has 8 bits or fewer, so that they may go at that rate.
    """

    node: str
    operation: str
    count: int
    is_narrow: bool


def count_products(node: Any) -> Products | None:
    """Counts the products of an operation; None where the array does not compute it.

    Args:
        node: an OpenVINO operation of static shapes.
    """
    kind = node.get_type_name()
    counter = _COUNTERS.get(kind)
    if counter is None:
        return None
    is_narrow = any(_is_narrow(source) for source in node.input_values()[:2])
    return Products(node.get_friendly_name(), kind, counter(node), is_narrow)


def _matmul(node: Any) -> int:
    shape = list(node.input(0).get_shape())
    inner = shape[-2] if node.get_attributes()["transpose_a"] and len(shape) > 1 else shape[-1]
    return int(prod(node.output(0).get_shape())) * int(inner)


def _attention(node: Any) -> int:
    query, key, value = (list(node.input(i).get_shape()) for i in range(3))
    length, reach = query[-2], key[-2]
    pairs = length * reach
    if node.get_attributes()["causal"]:  # the query at i sees the keys up to i
        pairs = sum(min(i + 1, reach) for i in range(length))
    batch = prod(list(node.output(0).get_shape())[:-2])
    return int(batch * pairs * (query[-1] + value[-1]))


def _convolution(node: Any) -> int:
    image, weight = (list(node.input(i).get_shape()) for i in range(2))
    result = list(node.output(0).get_shape())
    # (out, in, *window); a leading one of groups otherwise, whose product is the channels'
    rank = len(image) - 2
    taps = _window_products(node, image[2:], weight[-rank:], result[2:])
    return int(image[0] * prod(weight[:-rank]) * taps)


def _transposed_convolution(node: Any) -> int:
    image, weight = (list(node.input(i).get_shape()) for i in range(2))
    rank = len(image) - 2
    result = list(node.output(0).get_shape())
    taps = _window_products(node, result[2:], weight[-rank:], image[2:])
    return int(image[0] * prod(weight[:-rank]) * taps)


def _window_products(
    node: Any, wide: Sequence[int], window: Sequence[int], narrow: Sequence[int]
) -> int:
    """Pairs of a place of the narrow side and one of its window that lies in the wide side."""
    options = node.get_attributes()
    begins = list(options["pads_begin"])
    found = 1
    for axis, size in enumerate(wide):
        stride, dilation = options["strides"][axis], options["dilations"][axis]
        found *= sum(
            0 <= place * stride + tap * dilation - begins[axis] < size
            for place in range(narrow[axis])
            for tap in range(window[axis])
        )
    return found


def _is_narrow(source: ov.Output) -> bool:
    """Whether a tensor, or what it is unpacked from, has 8 bits or fewer."""
    while True:
        if source.get_element_type().get_type_name() in _NARROW:
            return True
        node = source.get_node()
        kind = node.get_type_name()
        if kind == "FakeQuantize":
            return int(node.get_attributes()["levels"]) <= 256
        if kind not in _UNPACKING:
            return False
        source = node.input_value(0)


_COUNTERS = {
    "Convolution": _convolution,
    "ConvolutionBackpropData": _transposed_convolution,
    "GroupConvolution": _convolution,
    "GroupConvolutionBackpropData": _transposed_convolution,
    "MatMul": _matmul,
    "ScaledDotProductAttention": _attention,
}
