"""Converters of calls that create tensors, triangles, and symbolic numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering import half_values
from npu_compiler.lowering.context import Context, Operand
from npu_compiler.lowering.registry import converter

# npu_compiler.lowering.lower binds a graph's constants.

__all__: list[str] = []

aten = torch.ops.aten


def _filled(ctx: Context, value: Operand, shape: ov.Output) -> Any:
    return ops.broadcast(ctx.get(value, ctx.out_dtype()), shape)


def _as_result(ctx: Context, value: Operand) -> Any:
    """Fills the shape of the current node's result; its sizes come from another tensor."""
    sizes = ctx.sizes(ctx.node)
    if any(size is None for size in sizes):
        return _filled(ctx, value, ctx.shape(ctx.node.args[0]))  # type: ignore[arg-type]
    return _filled(ctx, value, ctx.integers([size for size in sizes if size is not None]))


def _number_of(ctx: Context) -> int:
    return 1 if "ones" in str(ctx.node.target) else 0


@converter(
    aten.full.default,
    aten.zeros.default,
    aten.ones.default,
    aten.empty.memory_format,
    aten.new_full.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_empty.default,
    compute=False,
)
def convert_full(ctx: Context, size: Any, fill_value: Operand = None, **_: Any) -> Any:
    return _filled(ctx, _number_of(ctx) if fill_value is None else fill_value, ctx.vector(size))


@converter(
    aten.full_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.empty_like.default,
    compute=False,
)
def convert_full_like(ctx: Context, self: fx.Node, fill_value: Operand = None, **_: Any) -> Any:
    return _as_result(ctx, _number_of(ctx) if fill_value is None else fill_value)


@converter(aten.fill.Scalar, aten.fill.Tensor, compute=False)
def convert_fill(ctx: Context, self: fx.Node, value: Operand) -> Any:
    return _as_result(ctx, value)


@converter(aten.scalar_tensor.default, compute=False)
def convert_scalar_tensor(ctx: Context, s: Operand, **_: Any) -> Any:
    return ctx.get(s, ctx.out_dtype())


@converter(aten.arange.default, aten.arange.start, aten.arange.start_step, compute=False)
def convert_arange(
    ctx: Context, end: Operand, start: Operand = 0, step: Operand = 1, **_: Any
) -> Any:
    dtype = ctx.out_dtype()
    # Half types cannot represent every count, so count in float32 and cast.
    work = torch.float32 if dtype.is_floating_point else torch.int64
    bounds = (ctx.get(value, work) for value in (start, end, step))
    values = ops.range(*bounds, output_type="f32" if work is torch.float32 else "i64")
    return ctx.convert(values.output(0), dtype)


@converter(
    aten._to_copy.default,
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.device,
    aten.type_as.default,
    torch.ops.prims.convert_element_type.default,
    compute=False,
)
def convert_to_copy(ctx: Context, **arguments: Any) -> Any:
    operand = arguments["self"] if "self" in arguments else arguments["a"]
    dtype = ctx.out_dtype()
    value = ctx.get(operand)
    if half_values.is_narrower(ctx.dtype(operand), dtype):
        value = ctx.wide(operand)
    is_to_integer = not dtype.is_floating_point and dtype is not torch.bool
    if ctx.dtype(operand).is_floating_point and is_to_integer:
        # torch truncates; Convert of the CPU plugin rounds in some cases.
        value = ops.multiply(ops.sign(value), ops.floor(ops.abs(value))).output(0)
    return ctx.convert(value, dtype)


@converter(
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.lift.default,
    aten.positive.default,
    aten.resolve_conj.default,
    compute=False,
)
def convert_same(ctx: Context, self: fx.Node, **_: Any) -> Any:
    return ctx.get(self)


@converter(aten.copy.default, compute=False)
def convert_copy(ctx: Context, self: fx.Node, src: Operand, **_: Any) -> Any:
    value = ctx.get(src, ctx.out_dtype())
    if ctx.sizes(src) == ctx.sizes(self) and None not in ctx.sizes(self):
        return value
    return ops.broadcast(value, ctx.shape(self))


@converter(aten.tril.default, aten.triu.default, compute=False)
def convert_triangle(ctx: Context, self: fx.Node, diagonal: Any) -> Any:
    is_lower = "tril" in str(ctx.node.target)
    zero = ctx.number(0, torch.int64)
    one = ctx.number(1, torch.int64)
    rows = ops.range(zero, ctx.reshape(ctx.size(self, -2), []), one, output_type="i64")
    columns = ops.range(zero, ctx.reshape(ctx.size(self, -1), []), one, output_type="i64")
    limit = ops.add(ctx.unsqueeze(rows.output(0), [1]), ctx.get(diagonal, torch.int64))
    across = ctx.unsqueeze(columns.output(0), [0])
    keep = ops.less_equal(across, limit) if is_lower else ops.greater_equal(across, limit)
    return ops.select(keep, ctx.get(self), ctx.number(0, ctx.out_dtype()))


# A system of n rows becomes about 7 n operations.
_MOST_ROWS = 128


def _rule(node: fx.Node, self: fx.Node, B: fx.Node, **_: Any) -> str | None:
    rows = self.meta["val"].shape[-1]
    if not isinstance(rows, int) or rows > _MOST_ROWS:
        return f"a triangular system of more than {_MOST_ROWS} rows"
    return None


@converter(torch.ops.aten.linalg_solve_triangular.default, rule=_rule, host_is_better=True)
def convert_solve_triangular(
    ctx: Context,
    self: fx.Node,
    B: fx.Node,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> ov.Output:
    rows = ctx.sizes(self)[-1]
    assert rows is not None
    matrix, right = ctx.get(self), ctx.get(B)
    if not left:  # X A = B is A^T X^T = B^T
        matrix, right = _transposed(ctx, matrix), _transposed(ctx, right)
    solved = _System(ctx, matrix, right, upper is left, unitriangular).solve(0, rows)
    return solved if left else _transposed(ctx, solved)


def _transposed(ctx: Context, value: ov.Output) -> ov.Output:
    rank = len(value.get_partial_shape())
    return ctx.transpose(value, [*range(rank - 2), rank - 1, rank - 2])


class _System:
    """The system A X = B, solved from the first row, or from the last for an upper triangle."""

    def __init__(
        self, ctx: Context, matrix: ov.Output, right: ov.Output, is_upper: bool, has_ones: bool
    ) -> None:
        self._ctx, self._matrix, self._right = ctx, matrix, right
        self._is_upper, self._has_ones = is_upper, has_ones

    def solve(self, begin: int, end: int, right: ov.Output | None = None) -> ov.Output:
        """Solves a diagonal block; `right` has its rows of B, less the solved part."""
        if right is None:
            right = self._cut(self._right, (-2, begin, end))
        if end - begin == 1:
            if self._has_ones:
                return right
            return ops.divide(right, self._block(begin, end, begin, end)).output(0)
        middle = (begin + end) // 2
        upper, lower = (begin, middle), (middle, end)
        first, then = (lower, upper) if self._is_upper else (upper, lower)
        solved = self.solve(*first, self._rows_of(right, first, begin))
        known = ops.matmul(self._block(*then, *first), solved, False, False)
        rest = ops.subtract(self._rows_of(right, then, begin), known).output(0)
        behind = self.solve(*then, rest)
        parts = [behind, solved] if self._is_upper else [solved, behind]
        return ops.concat(parts, -2).output(0)

    def _rows_of(self, right: ov.Output, rows: tuple[int, int], begin: int) -> ov.Output:
        return self._cut(right, (-2, rows[0] - begin, rows[1] - begin))

    def _block(self, top: int, bottom: int, left: int, right: int) -> ov.Output:
        return self._cut(self._matrix, (-2, top, bottom), (-1, left, right))

    def _cut(self, value: ov.Output, *ranges: tuple[int, int, int]) -> ov.Output:
        """Slices by ranges (axis, begin, end)."""
        axes, begins, ends = map(self._ctx.integers, zip(*ranges, strict=True))
        steps = self._ctx.integers([1] * len(ranges))
        return ops.slice(value, begins, ends, steps, axes).output(0)


# Context.vector assembles the shapes of views.


@converter(operator.getitem, compute=False)
def convert_getitem(ctx: Context, arg0: Any, arg1: Any) -> Any:
    values = ctx.value(arg0)
    if not isinstance(values, tuple):
        ctx.refuse("only a tuple of results can be indexed")
    value = values[arg1]
    if value is None:
        ctx.refuse(f"result {arg1} of {arg0.name} is not computed by its converter")
    return value


@converter(aten.sym_size.int, compute=False)
def convert_sym_size(ctx: Context, self: fx.Node, dim: int) -> Any:
    return ctx.reshape(ctx.size(self, dim), [])


@converter(aten.sym_numel.default, compute=False)
def convert_sym_numel(ctx: Context, self: fx.Node) -> Any:
    return ops.reduce_prod(ctx.shape(self), ctx.integers([0]), False)


# Arithmetic on sizes -> OpenVINO node and operand dtype (None: the result's).
_SYMBOLIC: dict[Any, tuple[Callable[..., Any], torch.dtype | None]] = {
    operator.add: (ops.add, None),
    operator.sub: (ops.subtract, None),
    operator.mul: (ops.multiply, None),
    operator.floordiv: (lambda a, b: ops.divide(ops.subtract(a, ops.floor_mod(a, b)), b), None),
    operator.mod: (ops.floor_mod, None),
    operator.truediv: (ops.divide, None),
    operator.pow: (ops.power, None),
    operator.neg: (ops.negative, None),
    torch.sym_max: (ops.maximum, None),
    torch.sym_min: (ops.minimum, None),
    operator.eq: (ops.equal, torch.int64),
    operator.ne: (ops.not_equal, torch.int64),
    operator.lt: (ops.less, torch.int64),
    operator.le: (ops.less_equal, torch.int64),
    operator.gt: (ops.greater, torch.int64),
    operator.ge: (ops.greater_equal, torch.int64),
}


def _register_symbolic(key: Any, make: Callable[..., Any], dtype: torch.dtype | None) -> None:
    @converter(key, compute=False)
    def convert(ctx: Context, **operands: Operand) -> Any:
        wanted = dtype or ctx.out_dtype()
        return make(*(ctx.get(operand, wanted) for operand in operands.values()))


for _key, (_make, _dtype) in _SYMBOLIC.items():
    _register_symbolic(_key, _make, _dtype)


@converter(torch.sym_float, compute=False)
def convert_sym_float(ctx: Context, arg0: Operand) -> Any:
    return ctx.get(arg0, torch.float32)


@converter(torch.sym_int, math.trunc, compute=False)
def convert_sym_int(ctx: Context, arg0: Operand) -> Any:
    return ctx.get(arg0, torch.int64)
