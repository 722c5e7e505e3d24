"""What a converter sees while one graph is lowered: values, dtypes, shapes, constants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import openvino as ov
import openvino.opset1 as opset1
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering import constants
from npu_compiler.lowering.dtypes import NARROW_DTYPES, ov_type

__all__ = ["Context", "Refused", "Value", "same_size", "static_shape"]

# Types whose numbers all fit a narrow integer type.
_WITHIN = {
    ov.Type.u8: {ov.Type.boolean},
    ov.Type.i8: {ov.Type.boolean},
    ov.Type.i16: {ov.Type.boolean, ov.Type.u8, ov.Type.i8},
}

# What a node lowers to: one output, or one per result (None for a result that may not be read).
Value = Any
Operand = Any


class Refused(Exception):
    """A converter's statement that this call cannot be lowered; its text is the reason."""


class Context:
    """The state of one lowering, handed to each converter.

    Attributes:
        node: the FX node that is being lowered.
        live: the nodes that the graph's output needs.
        keep_alive: tensors whose memory the model's constants read.
        nan: "propagate", "fast", or None; see npu_compiler.lowering.nan.
        drops_nan: nodes that were lowered to forms which may drop NaN.
        fixed_sizes: whether no size of a form may depend on values.
    """

    def __init__(self, *, nan: str | None = "propagate") -> None:
        self.nan = nan
        self.drops_nan: list[fx.Node] = []
        self.fixed_sizes = False
        self.node: fx.Node
        self.live: set[fx.Node] = set()
        self.keep_alive: list[torch.Tensor] = []
        self._values: dict[fx.Node, Value] = {}
        self._shared: dict[tuple[Any, ...], ov.Output] = {}

    # Values

    def bind(self, node: fx.Node, value: Value) -> None:
        """Records what a node lowers to."""
        self._values[node] = value

    def value(self, node: fx.Node) -> Value:
        """Returns what a node lowered to, as its converter gave it."""
        return self._values[node]

    def bound(self) -> Iterator[tuple[fx.Node, Value]]:
        """Yields each lowered node with its value."""
        yield from self._values.items()

    def get(self, operand: Operand, dtype: torch.dtype | None = None) -> ov.Output:
        """Returns the output for an operand: a node, or a number as a rank-0 constant.

        Args:
            operand: FX node (tensor or symbolic integer), bool, int or float.
            dtype: convert to this dtype; by default a node keeps its own, and a number takes
                bool, int64 or the result's float dtype.
        """
        if isinstance(operand, fx.Node):
            value = self._values[operand]
            if not isinstance(value, ov.Output):
                self.refuse(f"{operand.name} is not a single tensor here")
            return value if dtype is None else self.convert(value, dtype)
        if isinstance(operand, torch.Tensor):
            value = self.constant(operand)
            return value if dtype is None else self.convert(value, dtype)
        if isinstance(operand, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.refuse("a symbolic number stands in the arguments without a node of its own")
        if not isinstance(operand, (bool, int, float)):
            self.refuse(f"an argument of type {type(operand).__name__} is not understood")
        if dtype is None:
            dtype = _number_dtype(operand)
        return self.number(operand, dtype)

    def constant(self, tensor: torch.Tensor) -> ov.Output:
        """Makes a constant over a tensor's memory and keeps the tensor alive."""
        output, source = constants.tensor_constant(tensor)
        self.keep_alive.append(source)
        return output

    def number(self, value: bool | int | float, dtype: torch.dtype) -> ov.Output:
        """Makes a rank-0 constant, one per value and dtype in a graph."""
        if dtype is torch.bool:
            value = bool(value)
        elif not dtype.is_floating_point:
            if isinstance(value, float) and not math.isfinite(value):
                self.refuse(f"{value} has no value in {dtype}")
            value = int(value)
        key = ("number", dtype, repr(value))
        if key not in self._shared:
            self._shared[key] = constants.number(value, dtype)
        return self._shared[key]

    def integers(self, values: Sequence[int]) -> ov.Output:
        """Makes a constant int64 vector, one per content in a graph."""
        key = ("integers", tuple(values))
        if key not in self._shared:
            self._shared[key] = constants.integers(values)
        return self._shared[key]

    def vector(self, values: Sequence[Operand]) -> ov.Output:
        """Makes an int64 vector from integers and nodes that stand for symbolic integers."""
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
        """Returns the dtype of the current node's result, or of one of its results."""
        meta = self.node.meta["val"]
        if isinstance(meta, (tuple, list)):
            meta = meta[index]
        return meta.dtype if isinstance(meta, torch.Tensor) else _number_dtype(meta)

    def is_read(self, index: int) -> bool:
        """Whether anybody needs one of the current node's results."""
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

    # Nodes that many converters need

    def convert(self, output: ov.Output, dtype: torch.dtype) -> ov.Output:
        """Casts as torch does; no node when the type is right already."""
        target = ov_type(dtype)
        source = output.get_element_type()
        if source == target:
            return output
        if dtype is torch.bool:
            zero = ops.constant(0, source)
            return ops.not_equal(output, zero).output(0)
        if dtype in NARROW_DTYPES and source not in _WITHIN[target]:
            output = self._wrapped(output, dtype)
        return ops.convert(output, target).output(0)

    def _wrapped(self, output: ov.Output, dtype: torch.dtype) -> ov.Output:
        """Keeps the low bits of numbers, as an int32 tensor of the dtype's range.

        The CPU plugin's own cast saturates, wraps around or keeps the number, by what stands
        beside it (OpenVINO 2026.4.1).
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
        """Returns one size of a tensor as an int64 vector of length 1, folded when static."""
        dim = self.axis(operand, dim)
        known = self.sizes(operand)[dim]
        if known is not None:
            return self.integers([known])
        shape = ops.shape_of(self.get(operand), output_type="i64")
        return ops.gather(shape, self.integers([dim]), self.number(0, torch.int64)).output(0)

    def shape(self, operand: fx.Node) -> ov.Output:
        """Returns a tensor's sizes as an int64 vector, folded when static."""
        known = self.sizes(operand)
        if all(size is not None for size in known):
            return self.integers([size for size in known if size is not None])
        return ops.shape_of(self.get(operand), output_type="i64").output(0)

    def reshape(self, output: ov.Output, sizes: Sequence[int]) -> ov.Output:
        """Reshapes to constant sizes, of which one may be -1."""
        return ops.reshape(output, self.integers(sizes), False).output(0)

    def transpose(self, output: ov.Output, order: Sequence[int]) -> ov.Output:
        """Permutes axes; no node for the identity."""
        if list(order) == list(range(len(order))):
            return output
        return ops.transpose(output, self.integers(order)).output(0)

    def unsqueeze(self, output: ov.Output, axes: Sequence[int]) -> ov.Output:
        """Adds axes of size 1."""
        return ops.unsqueeze(output, self.integers(axes)).output(0) if axes else output

    def squeeze(self, output: ov.Output, axes: Sequence[int]) -> ov.Output:
        """Removes axes of size 1, in the version that an NPU's compiler takes."""
        return opset1.squeeze(output, self.integers(axes)).output(0) if axes else output

    def refuse(self, reason: str) -> NoReturn:
        """Says that the current node cannot be lowered.

        Raises:
            Refused: always.
        """
        raise Refused(reason)


def static_shape(meta: torch.Tensor) -> tuple[int | None, ...]:
    """Returns sizes as integers, None for a symbolic one; installs no guard."""
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
    # A fake tensor would dispatch, and a symbolic number would install a guard.
    if isinstance(meta, torch.Tensor):
        shape = () if meta.dim() == 0 else (1,)
        return torch.empty(shape, dtype=meta.dtype)
    if isinstance(meta, torch.SymBool):
        return True
    if isinstance(meta, torch.SymInt):
        return 1
    return 1.0 if isinstance(meta, torch.SymFloat) else meta
