"""Counts multiplications and memory traffic of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import openvino as ov

__all__ = ["Products", "Traffic", "count_products", "count_traffic", "live_nodes"]

# Operations between quantized weights and their product.
_UNPACKING = frozenset(
    {"Convert", "Multiply", "Reshape", "Squeeze", "Subtract", "Transpose", "Unsqueeze"}
)
_NARROW = frozenset(
    {"boolean", "f4e2m1", "f8e4m3", "f8e5m2", "i4", "i8", "nf4", "u1", "u2", "u3", "u4", "u6", "u8"}
)


@dataclass(frozen=True)
class Products:
    """The products of one operation."""

    node: str  # its name in the model
    operation: str  # its type
    # Multiply-accumulates, without those on padding or behind a causal mask.
    count: int
    is_narrow: bool  # whether an operand has 8 bits or fewer, which may run at the 8-bit rate


def count_products(node: Any) -> Products | None:
    """Counts the products of an operation; None if the array does not compute it."""
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
    if node.get_attributes()["causal"]:  # query i sees keys 0 to i
        pairs = sum(min(i + 1, reach) for i in range(length))
    batch = prod(list(node.output(0).get_shape())[:-2])
    return int(batch * pairs * (query[-1] + value[-1]))


def _convolution(node: Any) -> int:
    image, weight = (list(node.input(i).get_shape()) for i in range(2))
    result = list(node.output(0).get_shape())
    # (out, in, *window); with groups, their axis comes first
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
    """Counts pairs of a position on the narrow side and one of its window inside the wide side."""
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
    """Whether a tensor, or the tensor it is unpacked from, has 8 bits or fewer."""
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


# Results inside a program are not counted: they may stay in the scratchpad, whole or in pieces.
# Only the parts of an input that are read are counted.

# Operations that read at most as many elements of their first input as they return.
_SELECTING = frozenset(
    {"Gather", "GatherElements", "GatherND", "Slice", "Split", "StridedSlice", "VariadicSplit"}
)
# Operations that return the elements of their first input unchanged.
_PASSING = frozenset({"Convert", "ReadValue", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_UNREAD = frozenset({"Assign", "Result", "ShapeOf"})
# Sizes and positions, which are part of the compiler's commands.
_POSITIONS = frozenset({"i32", "i64", "u32", "u64"})
# Float constants of a program are float16 on an NPU.
_WIDEST_WEIGHT_BITS = 16


@dataclass(frozen=True)
class Traffic:
    """Bytes of one run."""

    weight_bytes: int  # bytes of constants as stored, floats as float16
    input_bytes: int  # bytes of inputs
    output_bytes: int  # bytes of outputs

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.weight_bytes + self.input_bytes + self.output_bytes


def count_traffic(model: ov.Model) -> Traffic:
    """Counts the bytes of a run of a model with static shapes."""
    nodes = model.get_ordered_ops()
    live = live_nodes(nodes)
    inputs = [
        node.output(0) for node in nodes if node.get_type_name() in ("Parameter", "ReadValue")
    ]
    outputs = [node.input_value(0) for node in nodes if node.get_type_name() == "Result"]
    return Traffic(
        weight_bytes=_weight_bytes(nodes, live),
        input_bytes=sum(_bytes(_elements_read(port, live), _bits(port)) for port in inputs),
        output_bytes=sum(
            _bytes(_count(port), _bits(port))
            for port in outputs
            if port.get_node().get_name() in live and port.get_node().get_type_name() != "Parameter"
        ),
    )


def live_nodes(nodes: list[Any]) -> frozenset[str]:
    """Returns the names of nodes that depend on an input; the compiler evaluates the others."""
    live: set[str] = set()
    for node in nodes:
        is_source = node.get_type_name() in ("Parameter", "ReadValue")
        sources = (source.get_node().get_name() for source in node.input_values())
        if is_source or any(name in live for name in sources):
            live.add(node.get_name())
    return frozenset(live)


def _weight_bytes(nodes: list[Any], live: frozenset[str]) -> int:
    """Counts bytes of constants, or of results computed only from constants if smaller.

    Constants shared by several such results are counted with the first, largest one.
    """
    leaves: dict[str, dict[str, int]] = {}  # result of constants -> its constants and their bits
    ends: list[tuple[float, int, int, str]] = []
    for node in nodes:
        name = node.get_name()
        if name in live:
            continue
        if node.get_type_name() == "Constant":
            port = node.output(0)
            is_data = port.get_element_type().get_type_name() not in _POSITIONS
            is_counted = is_data and _count(port) > 1
            leaves[name] = {name: _count(port) * _weight_bits(port)} if is_counted else {}
        else:
            leaves[name] = {}
            for source in node.input_values():
                leaves[name] |= leaves[source.get_node().get_name()]
        for port in node.outputs():
            read = _elements_read(port, live)
            if read and leaves[name]:
                ends.append((read / _count(port), _count(port), _weight_bits(port), name))
    found = 0.0
    counted: set[str] = set()
    for share, count, bits, name in sorted(ends, key=lambda end: -end[0] * end[1] * end[2]):
        new = {leaf: size for leaf, size in leaves[name].items() if leaf not in counted}
        counted |= new.keys()
        found += share * min(count * bits, sum(new.values()))
    return int(found / 8)


def _elements_read(port: ov.Output, live: frozenset[str]) -> int:
    """Returns the least number of a tensor's elements that input-dependent operations read."""
    count, read = _count(port), 0
    for reader in port.get_target_inputs():
        node = reader.get_node()
        kind = node.get_type_name()
        if kind in _UNREAD or node.get_name() not in live:
            continue
        if kind in _SELECTING and reader.get_index() == 0:
            read += sum(_count(output) for output in node.outputs())
        elif kind in _PASSING and reader.get_index() == 0:
            read += _elements_read(node.output(0), live)
            read += count if _is_result(node.output(0)) else 0
        else:
            read += count
    return min(count, read)


def _is_result(port: ov.Output) -> bool:
    readers = (reader.get_node().get_type_name() for reader in port.get_target_inputs())
    return "Result" in readers


def _count(port: ov.Output) -> int:
    return int(prod(port.get_shape()))


def _bits(port: ov.Output) -> int:
    return int(port.get_element_type().bitwidth)


def _weight_bits(port: ov.Output) -> int:
    return min(_bits(port), _WIDEST_WEIGHT_BITS)


def _bytes(count: int, bits: int) -> int:
    return (count * bits + 7) // 8
