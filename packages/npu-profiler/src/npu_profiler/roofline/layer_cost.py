"""Floating-point operations and bytes of one run of a layer, from its inputs and outputs.

The formulas are for the layer types of OpenVINO's CPU plugin. Other types are reported as unknown,
never estimated. A call of a function (exp, tanh) counts as one operation, and a multiply-add as
two.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from npu_profiler.reading import SliceRef, Trace

__all__ = ["Array", "Cost", "costs_of_layers", "count_cost", "parse_arrays"]

_ARRAY = re.compile(r"([a-z]+)(\d*)(\w*)\[([\d,?]*)\]")
_FLOATS = ("f", "bf", "nf")
_UNIT_BITS = {"boolean": 8}


@dataclass(frozen=True, slots=True)
class Array:
    """An input or output of a layer."""

    dtype: str  # in OpenVINO's spelling: "f32", "bf16", "u4", "boolean"
    shape: tuple[int, ...] | None  # its shape; None if a size is unknown
    bits: int | None  # per element; None for a dtype without a size

    @property
    def size(self) -> int | None:
        """Number of elements."""
        return None if self.shape is None else math.prod(self.shape)

    @property
    def size_bytes(self) -> float | None:
        """Size in bytes; 0 if empty, whatever the dtype."""
        if self.size == 0:
            return 0.0
        return None if self.size is None or self.bits is None else self.size * self.bits / 8

    @property
    def is_float(self) -> bool:
        """Whether the dtype is floating-point."""
        return self.dtype.startswith(_FLOATS)


@dataclass(frozen=True, slots=True)
class Cost:
    """The minimum cost of one run of a layer."""

    flops: float | None  # Floating-point operations; None if the type is unknown.
    size_bytes: float | None  # read and written, each array once; None if a shape is unknown


def parse_arrays(text: str) -> tuple[Array, ...]:
    """Parses a trace's description of inputs or outputs, such as "f32[1,64] bf16[64,8]"."""
    return tuple(_array(*found.groups()) for found in _ARRAY.finditer(text))


def count_cost(kind: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> Cost:
    """Counts operations and bytes of a layer of a type such as "FullyConnected"."""
    # A layer that only writes a state has no outputs.
    arrays = (*inputs, *outputs)
    if not arrays or any(array.shape is None for array in arrays):
        return Cost(None, None)
    return Cost(_flops(kind, inputs, outputs), _size_bytes(kind, inputs, outputs))


def _array(letters: str, digits: str, rest: str, sizes: str) -> Array:
    dtype = letters + digits + rest
    # "f8e4m3" has 8 bits, "u4" has 4.
    bits = int(digits) if digits else _UNIT_BITS.get(dtype)
    shape = None if "?" in sizes else tuple(int(size) for size in sizes.split(",") if size)
    return Array(dtype, shape, bits)


def _flops(kind: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> float | None:
    if kind in _MOVES:
        return 0.0
    if not outputs:
        return None
    count = _FORMULAS.get(kind)
    if count is not None:
        return count(inputs, outputs)
    per_element = _PER_OUTPUT.get(kind)
    source = outputs[0]
    if per_element is None:
        per_element = _PER_INPUT.get(kind)
        source = inputs[0] if inputs else outputs[0]
    if per_element is None:
        return None
    # Arithmetic on indices and masks is not floating-point work.
    if not any(array.is_float for array in inputs):
        return 0.0
    return float(per_element * _count(source))


def _size_bytes(kind: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> float | None:
    if kind in _VIEWS:
        return 0.0
    read: Sequence[Array] = inputs
    if kind in _PICKS:
        # Only the gathered part of the source is read.
        read = [*inputs[1:], outputs[0]]
    elif kind == _CACHED_ATTENTION and len(outputs) == 3:
        # The cache is read once, with the size of the outputs; its previous value is the same
        # memory.
        read = inputs[:-2]
    sizes = [array.size_bytes for array in (*read, *outputs)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _matmul(inputs: Sequence[Array], outputs: Sequence[Array]) -> float | None:
    """2 M N K per batch element; a may be transposed, so K is derived from its size and M."""
    a, out = _shape(inputs[0]), _shape(outputs[0])
    if len(a) < 2 or len(out) < 2 or 0 in out:
        return None if 0 not in out else 0.0
    return 2.0 * math.prod(out) * (a[-1] * a[-2] / out[-2])


def _fully_connected(inputs: Sequence[Array], outputs: Sequence[Array]) -> float | None:
    if not _shape(inputs[0]):
        return None
    return 2.0 * _count(outputs[0]) * _shape(inputs[0])[-1]


def _several_products(inputs: Sequence[Array], _outputs: Sequence[Array]) -> float | None:
    """Products of the same rows with several weights, such as query, key and value."""
    x = _shape(inputs[0])
    if not x:
        return None
    rows = math.prod(x[:-1])
    weights = [array for array in inputs[1:] if len(_shape(array)) == 2]
    return 2.0 * rows * sum(_count(weight) for weight in weights) if weights else None


def _convolution(inputs: Sequence[Array], outputs: Sequence[Array]) -> float | None:
    """Each output is a dot product with its channel's weights; groups come first in the weights."""
    out = _shape(outputs[0])
    if len(inputs) < 2 or len(out) < 2 or 0 in out:
        return None
    return 2.0 * math.prod(out) * _count(inputs[1]) / out[1]


def _deconvolution(inputs: Sequence[Array], _outputs: Sequence[Array]) -> float | None:
    """Each input is multiplied by its channel's weights."""
    x = _shape(inputs[0])
    if len(inputs) < 2 or len(x) < 2 or 0 in x:
        return None
    return 2.0 * math.prod(x) * _count(inputs[1]) / x[1]


def _attention(inputs: Sequence[Array], outputs: Sequence[Array]) -> float | None:
    """Scores, softmax (5 per score) and weighted values, for (batch, heads, length, size)."""
    query, out = _shape(inputs[0]), _shape(outputs[0])
    keys = _shape(outputs[1] if len(outputs) == 3 else inputs[1])
    if len(query) != 4 or len(keys) != 4 or len(out) != 4:
        return None
    length = keys[-2]
    scores = math.prod(query[:-1]) * length
    return 2.0 * scores * query[-1] + 5.0 * scores + 2.0 * scores * out[-1]


def _shape(array: Array) -> tuple[int, ...]:
    return array.shape or ()


def _count(array: Array) -> int:
    return math.prod(_shape(array))


_CACHED_ATTENTION = "ScaledDotProductAttentionWithKVCache"

_FORMULAS: dict[str, Callable[[Sequence[Array], Sequence[Array]], float | None]] = {
    "FullyConnected": _fully_connected,
    "FullyConnectedCompressed": _fully_connected,
    "MatMul": _matmul,
    "Linear": _several_products,  # npu-ops' kernel programs
    "QKVProjection": _several_products,
    "LLMMLP": _several_products,
    "Convolution": _convolution,
    "GroupConvolution": _convolution,
    "Deconvolution": _deconvolution,
    "ConvolutionBackpropData": _deconvolution,
    "GroupConvolutionBackpropData": _deconvolution,
    "ScaledDotProductAttention": _attention,
    _CACHED_ATTENTION: _attention,
}

_ONE = (
    "Abs",
    "Add",
    "And",
    "Clamp",
    "Cos",
    "Divide",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterEqual",
    "HardSigmoid",
    "HSigmoid",
    "HSwish",
    "LeakyRelu",
    "Less",
    "LessEqual",
    "Log",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Mish",
    "Mod",
    "Multiply",
    "Negative",
    "Not",
    "NotEqual",
    "Or",
    "Power",
    "PowerStatic",
    "PReLU",
    "ReLU",
    "Relu",
    "Round",
    "Select",
    "Sigmoid",
    "Sign",
    "Sin",
    "SoftPlus",
    "Sqrt",
    "SquaredDifference",
    "Subtract",
    "Swish",
    "Tanh",
)

# Operations per written element.
_PER_OUTPUT = {
    **dict.fromkeys(_ONE, 1),
    "MulAdd": 2,
    "RoPE": 3,  # two products and their sum
    "Softmax": 5,  # maximum, difference, exponential, sum, quotient
    "LogSoftmax": 5,
    "RMS": 4,  # square, sum, two products
    "MVN": 5,  # sum, difference, square and its sum, product
    "NormalizeL2": 3,
}

# Operations per read element.
_PER_INPUT = {
    "AvgPool": 1,
    "CumSum": 1,
    "MaxPool": 1,
    "Pooling": 1,
    "Reduce": 1,
    "ReduceL1": 1,
    "ReduceL2": 2,
    "ReduceLogicalAnd": 1,
    "ReduceLogicalOr": 1,
    "ReduceMax": 1,
    "ReduceMean": 1,
    "ReduceMin": 1,
    "ReduceProd": 1,
    "ReduceSum": 1,
}

_VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "ShapeOf"}
_PICKS = {"Gather", "GatherElements", "GatherND", "Slice", "StridedSlice", "Crop"}
_MOVES = {
    *_VIEWS,
    *_PICKS,
    "Assign",
    "Broadcast",
    "Concat",
    "Concatenation",
    "Convert",
    "DepthToSpace",
    "MemoryInput",
    "MemoryOutput",
    "Pad",
    "Range",
    "ReadValue",
    "Reorder",
    "Roll",
    "ScatterElementsUpdate",
    "ScatterNDUpdate",
    "ScatterUpdate",
    "ShuffleChannels",
    "SpaceToDepth",
    "Split",
    "Tile",
    "Transpose",
    "VariadicSplit",
}


_Arrays = Sequence[Array]


def costs_of_layers(trace: Trace) -> Iterator[tuple[SliceRef, _Arrays, Cost]]:
    """Yields runs of layers by start time, each with its inputs and its cost."""
    shapes: dict[tuple[str, str], tuple[_Arrays, _Arrays]] = {}
    for item in sorted(trace.slices("layer"), key=lambda one: one.start_ns):
        args = item.args
        key = (item.parent.name if item.parent is not None else "", item.name)
        if "inputs" in args:
            shapes[key] = parse_arrays(args["inputs"]), parse_arrays(args["outputs"])
        inputs, outputs = shapes.get(key, ((), ()))
        yield item, inputs, count_cost(str(args.get("type") or ""), inputs, outputs)
