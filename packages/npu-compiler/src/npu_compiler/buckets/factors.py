"""Of what the dimensions of padded tensors are made, and how views regroup them.

A dimension is a row-major product of factors. A factor that varies holds true values at its
first positions and arbitrary ones behind them; a view that joins two dimensions keeps both factors,
so that it stays known where the true values are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from npu_compiler.buckets.sizes import Expr

__all__ = ["Dim", "Dims", "Factor", "is_padded", "product", "regroup", "whole"]


@dataclass(frozen=True)
class Factor:
    """Part of a dimension.

    Attributes:
        true: how many positions hold true values; a number when all do.
        size: positions.
    """

    true: Expr
    size: int

    @property
    def is_padded(self) -> bool:
        """Whether positions may be without a true value."""
        return not isinstance(self.true, int)


Dim = tuple[Factor, ...]
Dims = tuple[Dim, ...]


def whole(size: int) -> Dim:
    """Returns a dimension whose positions all hold true values."""
    return () if size == 1 else (Factor(size, size),)


def is_padded(dim: Dim) -> bool:
    """Whether a dimension has positions without true values."""
    return any(factor.is_padded for factor in dim)


def product(dim: Dim) -> tuple[Expr, int]:
    """Returns the true and the padded size of a dimension."""
    true: Expr = 1
    size = 1
    for factor in dim:
        true = sympy.expand(true * factor.true)
        size *= factor.size
    return (int(true) if isinstance(true, int) or true.is_Integer else true), size


def regroup(dims: Dims, sizes: Sequence[int]) -> Dims | None:
    """Divides the factors of a tensor among the dimensions of a view of it.

    Returns:
        The dimensions of the view; None when it cuts through a factor that varies.
    """
    if 0 in sizes:  # no elements: nothing to keep apart
        return None if any(map(is_padded, dims)) else tuple(whole(size) for size in sizes)
    rest = list(_joined([factor for dim in dims for factor in dim]))
    rest.reverse()
    made: list[Dim] = []
    for size in sizes:
        dim: list[Factor] = []
        missing = size
        while missing > 1:
            if not rest:
                return None
            factor = rest.pop()
            if missing % factor.size == 0:
                dim.append(factor)
                missing //= factor.size
            elif factor.is_padded or factor.size % missing:
                return None
            else:
                dim.append(Factor(missing, missing))
                rest.append(Factor(factor.size // missing, factor.size // missing))
                missing = 1
        made.append(_joined(dim))
    return None if rest else tuple(made)


def _joined(dim: Sequence[Factor]) -> Dim:
    """One form for equal dimensions: neighbours that do not vary are one factor."""
    made: list[Factor] = []
    for factor in dim:
        if made and not factor.is_padded and not made[-1].is_padded:
            size = made.pop().size * factor.size
            made.append(Factor(size, size))
        else:
            made.append(factor)
    return tuple(made)
