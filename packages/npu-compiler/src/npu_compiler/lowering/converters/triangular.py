"""Systems of triangular equations, halved until one row is left."""

from __future__ import annotations

from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

# A system of n rows becomes some seven operations a row.
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
    """A X = B; rows are solved from the first, or from the last of an upper triangle."""

    def __init__(
        self, ctx: Context, matrix: ov.Output, right: ov.Output, is_upper: bool, has_ones: bool
    ) -> None:
        self._ctx, self._matrix, self._right = ctx, matrix, right
        self._is_upper, self._has_ones = is_upper, has_ones

    def solve(self, begin: int, end: int, right: ov.Output | None = None) -> ov.Output:
        """Solves a block of the diagonal; right is what its rows of B are by now."""
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
        """Takes ranges (axis, begin, end)."""
        axes, begins, ends = map(self._ctx.integers, zip(*ranges, strict=True))
        steps = self._ctx.integers([1] * len(ranges))
        return ops.slice(value, begins, ends, steps, axes).output(0)
