"""The context of converters: values, constants and dtypes of the OpenVINO model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import openvino as ov
import openvino.opset1 as opset1
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.graph.nodes import plain_tensor
from npu_compiler.lowering import half_values
from npu_runtime.npu import as_cpu

__all__ = [
    "DEVICE_DTYPES",
    "MASKED",
    "NARROW_DTYPES",
    "Context",
    "Refused",
    "Value",
    "integers",
    "is_float",
    "number",
    "ov_type",
    "refusal_for_dtype",
    "same_size",
    "saturate",
    "static_shape",
    "tensor_constant",
    "torch_dtype",
]

# Types do not set the execution precision: npu_compiler.programs.compile_options does.

_TO_OV: dict[torch.dtype, ov.Type] = {
    torch.float32: ov.Type.f32,
    torch.float16: ov.Type.f16,
    torch.bfloat16: ov.Type.bf16,
    torch.float64: ov.Type.f64,
    torch.int64: ov.Type.i64,
    torch.int32: ov.Type.i32,
    torch.int16: ov.Type.i16,
    torch.int8: ov.Type.i8,
    torch.uint8: ov.Type.u8,
    torch.bool: ov.Type.boolean,
}
_TO_TORCH: dict[str, torch.dtype] = {t.get_type_name(): d for d, t in _TO_OV.items()}

# Dtypes that a program computes as torch does. The CPU plugin computes float64 in float32, and
# small integers in int32 without wraparound, so neither is here.
DEVICE_DTYPES: frozenset[torch.dtype] = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool}
)

# Dtypes that a program moves, casts and compares as torch does, without arithmetic in them.
NARROW_DTYPES: frozenset[torch.dtype] = frozenset({torch.uint8, torch.int8, torch.int16})


def ov_type(dtype: torch.dtype) -> ov.Type:
    """Returns OpenVINO's type for a torch dtype; KeyError if it has no counterpart."""
    return _TO_OV[dtype]


def torch_dtype(element_type: ov.Type) -> torch.dtype:
    """Returns the torch dtype for an OpenVINO element type; KeyError if there is none."""
    return _TO_TORCH[element_type.get_type_name()]


def is_float(dtype: torch.dtype) -> bool:
    """Whether a dtype is a floating-point type that a program can compute in."""
    return dtype in (torch.float32, torch.float16, torch.bfloat16)


def refusal_for_dtype(dtype: torch.dtype) -> str | None:
    """Returns why a program cannot compute in this dtype as torch does, or None if it can."""
    if dtype in DEVICE_DTYPES:
        return None
    if dtype is torch.float64:
        return "float64 would be computed in float32"
    if dtype in NARROW_DTYPES:
        return f"{dtype} arithmetic would not wrap around as torch's does"
    return f"{dtype} has no counterpart in a program"


# "Not seen" in an additive mask: the lowest float16. In half precision the minimum of float32 would
# become -inf, and a row of -inf becomes NaN.
MASKED = -65504.0

# numpy has no bfloat16, so its bytes are passed as an integer type of the same width.
_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tensor_constant(tensor: torch.Tensor) -> tuple[ov.Output, torch.Tensor]:
    """Makes a constant of a tensor's shape and dtype which shares the tensor's memory.

    Args:
        tensor: any shape, on npu or cpu (device memory is host memory), in a dtype that OpenVINO
            has. A tensor that is not contiguous is copied first.

    Returns:
        The constant's output, and the tensor whose memory it reads: OpenVINO holds no reference, so
        the caller keeps it alive as long as the model.
    """
    source = plain_tensor(tensor)
    if source.device.type == "npu":
        source = as_cpu(source)  # waits for the device, so that host code may read the bytes
    shape = ov.Shape(list(source.shape))
    if source.numel() == 0:
        empty = np.empty(tuple(source.shape), dtype=np.float32)
        node = ops.constant(empty, dtype=np.float32)
        return ops.convert(node, ov_type(tensor.dtype)).output(0), source
    raw = _raw(source)
    view = ov.Tensor(raw, shape, ov_type(tensor.dtype))
    return ov.op.Constant(view, True).output(0), source


def number(value: bool | int | float, dtype: torch.dtype) -> ov.Output:
    """Makes a rank-0 constant; values too large for the dtype become infinite, as in torch."""
    if dtype in (torch.bfloat16, torch.float16):
        raw = torch.tensor(value, dtype=dtype).view(torch.int16).reshape(1).numpy()
        view = ov.Tensor(raw, ov.Shape([]), ov_type(dtype))
        return ov.op.Constant(view, shared_memory=False).output(0)
    return ops.constant(value, ov_type(dtype)).output(0)


def integers(values: Sequence[int]) -> ov.Output:
    """Makes an int64 constant of shape (len(values),)."""
    return ops.constant(np.asarray(values, dtype=np.int64)).output(0)


def saturate(model: ov.Model) -> None:
    """Saturates int64 constants to the range of int32, in place: plugins compute them in int32.

    A plugin saturates them when it compiles. When it loads a compiled blob, it reads the weights
    file again and drops the upper half: an end of 2**63 - 1 became -1.
    """
    bounds = np.iinfo(np.int32)
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Constant" or node.get_element_type() != ov.Type.i64:
            continue
        values = node.get_data()
        if values.size == 0 or (values.min() >= bounds.min and values.max() <= bounds.max):
            continue
        inside = ops.constant(np.clip(values, bounds.min, bounds.max), ov.Type.i64)
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(inside.output(0))


def _raw(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Returns the elements of a contiguous cpu tensor as a flat array over the same memory."""
    return tensor.view(-1).view(_SAME_WIDTH[tensor.element_size()]).numpy()


# For each narrow integer type, the types whose values all fit it.
_WITHIN = {
    ov.Type.u8: {ov.Type.boolean},
    ov.Type.i8: {ov.Type.boolean},
    ov.Type.i16: {ov.Type.boolean, ov.Type.u8, ov.Type.i8},
}

# The lowered value of a node: one output, or one per result (None if it may not be read).
Value = Any
Operand = Any


class Refused(Exception):
    """Raised by a converter for a call that it cannot lower; the text is the reason."""


class Context:
    """The state of one lowering, handed to each converter.

    Attributes:
        node: the FX node that is being lowered.
        live: the nodes that the graph's output needs.
        keep_alive: tensors whose memory the model's constants read.
        nan: "propagate", "fast" or None; see npu_compiler.lowering.nan.
        drops_nan: nodes that were lowered to forms which may drop NaN.
        fixed_sizes: whether all sizes must be independent of values.
        rounds_casts: whether the program must round casts to half precision, because the device
            computes in float32.
    """

    def __init__(self, *, nan: str | None = "propagate") -> None:
        self.nan = nan
        self.drops_nan: list[fx.Node] = []
        self.fixed_sizes = False
        self.rounds_casts = False
        self.node: fx.Node
        self.live: set[fx.Node] = set()
        self.keep_alive: list[torch.Tensor] = []
        self._values: dict[fx.Node, Value] = {}
        self._shared: dict[tuple[Any, ...], ov.Output] = {}

    # Values

    def bind(self, node: fx.Node, value: Value) -> None:
        """Records the lowered value of a node."""
        self._values[node] = value

    def value(self, node: fx.Node) -> Value:
        """Returns the lowered value of a node, as its converter returned it."""
        return self._values[node]

    def bound(self) -> Iterator[tuple[fx.Node, Value]]:
        """Yields each lowered node and its value."""
        yield from self._values.items()

    def get(self, operand: Operand, dtype: torch.dtype | None = None) -> ov.Output:
        """Returns the output for an operand: a node, or a number as a rank-0 constant.

        Args:
            operand: FX node (tensor or symbolic integer), bool, int or float.
            dtype: convert to this dtype; by default a node keeps its dtype, and a number takes
                bool, int64 or the result's float dtype.
        """
        if isinstance(operand, fx.Node):
            value = self._values[operand]
            if not isinstance(value, ov.Output):
                self.refuse(f"{operand.name} is not a single tensor here")
            if dtype is None:
                return value
            if half_values.is_narrower(torch_dtype(value.get_element_type()), dtype):
                return self.convert(self.wide(operand), dtype)
            return self.convert(value, dtype)
        if isinstance(operand, torch.Tensor):
            value = self.constant(operand)
            return value if dtype is None else self.convert(value, dtype)
        if isinstance(operand, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.refuse("a symbolic number in the arguments has no node")
        if not isinstance(operand, (bool, int, float)):
            self.refuse(f"an argument of type {type(operand).__name__} is not supported")
        if dtype is None:
            dtype = _number_dtype(operand)
        return self.number(operand, dtype)

    def wide(self, operand: fx.Node) -> ov.Output:
        """Returns a half-precision value in float32, rounded as in torch; cached in the graph."""
        key = ("wide", operand)
        if key not in self._shared:
            self._shared[key] = half_values.read_wide(
                operand,
                self._values[operand],
                number=lambda value: self.number(value, torch.float32),
                rounds_casts=self.rounds_casts,
            )
        return self._shared[key]

    def constant(self, tensor: torch.Tensor) -> ov.Output:
        """Makes a constant that shares a tensor's memory, and keeps the tensor alive."""
        output, source = tensor_constant(tensor)
        self.keep_alive.append(source)
        return output

    def number(self, value: bool | int | float, dtype: torch.dtype) -> ov.Output:
        """Returns a rank-0 constant, cached by value and dtype."""
        if dtype is torch.bool:
            value = bool(value)
        elif not dtype.is_floating_point:
            if isinstance(value, float) and not math.isfinite(value):
                self.refuse(f"{value} has no value in {dtype}")
            value = int(value)
        key = ("number", dtype, repr(value))
        if key not in self._shared:
            self._shared[key] = number(value, dtype)
        return self._shared[key]

    def integers(self, values: Sequence[int]) -> ov.Output:
        """Returns a constant int64 vector, cached by content."""
        key = ("integers", tuple(values))
        if key not in self._shared:
            self._shared[key] = integers(values)
        return self._shared[key]

    def vector(self, values: Sequence[Operand]) -> ov.Output:
        """Makes an int64 vector from integers and nodes of symbolic integers."""
        if all(isinstance(value, int) for value in values):
            return self.integers(values)
        parts = [
            self.integers([value])
            if isinstance(value, int)
            else self.reshape(self.get(value, torch.int64), [1])
            for value in values
        ]
        return parts[0] if len(parts) == 1 else ops.concat(parts, 0).output(0)

    # Facts

    def meta(self, operand: Operand) -> Any:
        """Returns the fake value (tensor or symbolic number) of a node, or the operand itself."""
        return operand.meta["val"] if isinstance(operand, fx.Node) else operand

    def dtype(self, operand: fx.Node) -> torch.dtype:
        """Returns a tensor node's dtype."""
        meta = self.meta(operand)
        if isinstance(meta, torch.Tensor):
            return meta.dtype
        return _number_dtype(meta)

    def out_dtype(self, index: int = 0) -> torch.dtype:
        """Returns the dtype of the current node's result, or of the result with an index."""
        meta = self.node.meta["val"]
        if isinstance(meta, (tuple, list)):
            meta = meta[index]
        return meta.dtype if isinstance(meta, torch.Tensor) else _number_dtype(meta)

    def is_read(self, index: int) -> bool:
        """Whether a result of the current node is used."""
        return any(user in self.live and user.args[1] == index for user in self.node.users)

    def out_rank(self) -> int:
        """Returns the rank of the current node's result."""
        return int(self.node.meta["val"].dim())

    def rank(self, operand: Operand) -> int:
        """Returns an operand's rank; 0 for numbers."""
        meta = self.meta(operand)
        return meta.dim() if isinstance(meta, torch.Tensor) else 0

    def sizes(self, operand: Operand) -> tuple[int | None, ...]:
        """Returns a tensor node's sizes, None for a symbolic one."""
        return static_shape(self.meta(operand))

    def axis(self, operand: Operand, dim: int) -> int:
        """Returns dim counted from the front."""
        rank = max(self.rank(operand), 1)
        return dim + rank if dim < 0 else dim

    def axes(self, operand: Operand, dims: Sequence[int] | int | None) -> list[int]:
        """Returns dims counted from the front, sorted; None or [] mean all of them."""
        if dims is None or (not isinstance(dims, int) and len(dims) == 0):
            return list(range(self.rank(operand)))
        listed = [dims] if isinstance(dims, int) else dims
        return sorted(self.axis(operand, dim) for dim in listed)

    def result_type(self, *operands: Operand) -> torch.dtype:
        """Returns the dtype that torch promotes the operands to."""
        if len(operands) == 1:
            return self.dtype(operands[0])
        first, second = (_promotion_stand_in(self.meta(operand)) for operand in operands)
        return torch.result_type(first, second)

    # Nodes for many converters

    def convert(self, output: ov.Output, dtype: torch.dtype) -> ov.Output:
        """Casts as torch does; adds no node if the type is already right."""
        target = ov_type(dtype)
        source = output.get_element_type()
        if source == target:
            return output
        if dtype is torch.bool:
            zero = ops.constant(0, source)
            return ops.not_equal(output, zero).output(0)
        if dtype in NARROW_DTYPES and source not in _WITHIN[target]:
            output = self._wrapped(output, dtype)
        if source == ov.Type.i32 and dtype is torch.float16:
            # OpenVINO 2026.4.1 folds such a cast of a constant to 65504 instead of infinity.
            output = ops.convert(output, ov.Type.f32).output(0)
        return ops.convert(output, target).output(0)

    def _wrapped(self, output: ov.Output, dtype: torch.dtype) -> ov.Output:
        """Keeps the low bits of integers, as an int32 tensor in the dtype's range.

        Depending on its neighbours, a cast of the CPU plugin saturates, wraps around or keeps the
        number (OpenVINO 2026.4.1).
        """
        if output.get_element_type() != ov.Type.i32:
            output = ops.convert(output, ov.Type.i32).output(0)
        limits = torch.iinfo(dtype)
        low = ops.bitwise_and(output, self.number((1 << limits.bits) - 1, torch.int32)).output(0)
        if limits.min == 0:
            return low
        sign = self.number(1 << (limits.bits - 1), torch.int32)
        return ops.subtract(ops.bitwise_xor(low, sign), sign).output(0)

    def size(self, operand: fx.Node, dim: int) -> ov.Output:
        """Returns one size of a tensor as an int64 vector of length 1, constant if static."""
        dim = self.axis(operand, dim)
        if self.rank(operand) == 0:
            return self.integers([1])
        known = self.sizes(operand)[dim]
        if known is not None:
            return self.integers([known])
        shape = ops.shape_of(self.get(operand), output_type="i64")
        return ops.gather(shape, self.integers([dim]), self.number(0, torch.int64)).output(0)

    def shape(self, operand: fx.Node) -> ov.Output:
        """Returns a tensor's sizes as an int64 vector, constant if static."""
        known = self.sizes(operand)
        if all(size is not None for size in known):
            return self.integers([size for size in known if size is not None])
        return ops.shape_of(self.get(operand), output_type="i64").output(0)

    def reshape(self, output: ov.Output, sizes: Sequence[int]) -> ov.Output:
        """Reshapes to constant sizes; one may be -1."""
        return ops.reshape(output, self.integers(sizes), False).output(0)

    def transpose(self, output: ov.Output, order: Sequence[int]) -> ov.Output:
        """Permutes axes; adds no node for the identity."""
        if list(order) == list(range(len(order))):
            return output
        return ops.transpose(output, self.integers(order)).output(0)

    def unsqueeze(self, output: ov.Output, axes: Sequence[int]) -> ov.Output:
        """Adds axes of size 1."""
        return ops.unsqueeze(output, self.integers(axes)).output(0) if axes else output

    def squeeze(self, output: ov.Output, axes: Sequence[int]) -> ov.Output:
        """Removes axes of size 1, with the Squeeze version that an NPU's compiler accepts."""
        return opset1.squeeze(output, self.integers(axes)).output(0) if axes else output

    def refuse(self, reason: str) -> NoReturn:
        """Rejects the current node as impossible to lower.

        Raises:
            Refused: always.
        """
        raise Refused(reason)


def static_shape(meta: torch.Tensor) -> tuple[int | None, ...]:
    """Returns sizes as integers, None for a symbolic one, without a guard."""
    return tuple(_known(size) for size in meta.shape)


def same_size(first: Any, second: Any) -> bool:
    """Whether two sizes are known to be equal, without a guard."""
    a, b = _known(first), _known(second)
    if a is not None or b is not None:
        return a == b
    return bool(first.node.expr == second.node.expr)


def _known(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    return int(expression) if expression.is_number else None


def _number_dtype(value: Any) -> torch.dtype:
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(value, (int, torch.SymInt)):
        return torch.int64
    return torch.float32


def _promotion_stand_in(meta: Any) -> Any:
    # A fake tensor would dispatch, and a symbolic number would add a guard.
    if isinstance(meta, torch.Tensor):
        shape = () if meta.dim() == 0 else (1,)
        return torch.empty(shape, dtype=meta.dtype)
    if isinstance(meta, torch.SymBool):
        return True
    if isinstance(meta, torch.SymInt):
        return 1
    return 1.0 if isinstance(meta, torch.SymFloat) else meta
