"""Buckets of sizes, and the factorization of padded dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch
from torch import fx

import npu_runtime
from npu_compiler.options import CompilerConfig

__all__ = [
    "Dim",
    "Dims",
    "Expr",
    "Factor",
    "Sizes",
    "evaluate",
    "expression",
    "is_padded",
    "product",
    "regroup",
    "round_up",
    "wants_static_programs",
    "whole",
]

# npu_compiler.buckets.specialize decides which sizes may be rounded.

# A size: a number, or an expression of dynamic sizes.
Expr: TypeAlias = int | sympy.Expr

# torch's bound of an unbounded size, and a value beyond every tensor.
_UNBOUNDED = 2**40


def wants_static_programs(config: CompilerConfig) -> bool:
    """Whether static programs serve dynamic shapes, on request or if needed."""
    if config.buckets is not None or config.target == "NPU" or config.is_for_vendor:
        return True
    device = npu_runtime.device_info().device
    return device.partition(".")[0] == "NPU"


def expression(size: Any) -> Expr:
    """Returns a size of a fake tensor as a number or as an expression."""
    if isinstance(size, torch.SymInt):
        size = size.node.expr
    if isinstance(size, sympy.Expr) and not size.is_Integer:
        return size
    return int(size)


def evaluate(expr: Expr, values: Mapping[sympy.Symbol, int]) -> Expr:
    """Replaces symbols by numbers; symbols without a value stay."""
    if isinstance(expr, int):
        return expr
    return expression(expr.xreplace({name: sympy.Integer(size) for name, size in values.items()}))


def round_up(size: int, buckets: Sequence[int] | None, largest: int) -> int:
    """Returns the bucket of a size.

    Args:
        size: true size.
        buckets: ascending sizes; above the last one, its multiples. None: powers of two.
        largest: upper bound of the graph, such as the end of a table of positions.
    """
    if size < 1:
        return size
    if buckets is None:
        bucket = 1 << (size - 1).bit_length()
    else:
        fitting = [bucket for bucket in buckets if bucket >= size]
        bucket = fitting[0] if fitting else -(-size // buckets[-1]) * buckets[-1]
    return max(size, min(bucket, largest))


class Sizes:
    """The symbols of a graph, and the places of their values in its inputs.

    Attributes:
        symbols: in the order of the inputs.
        is_whole: False for graphs that bucketing cannot serve, because a size is not that of an
            input or depends on data.
    """

    def __init__(self, graph: fx.Graph) -> None:
        """Searches the inputs of a graph with fake values in `meta["val"]`."""
        self._places: dict[sympy.Symbol, tuple[int, int | None]] = {}
        self._largest: dict[sympy.Symbol, int] = {}
        self._of_input: list[set[sympy.Symbol]] = []
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for position, node in enumerate(placeholders):
            value = node.meta.get("val")
            self._of_input.append(_symbols_in(value))
            if isinstance(value, torch.SymInt):
                self._note(value, position, None)
            elif isinstance(value, torch.Tensor):
                shape: tuple[Any, ...] = tuple(value.shape)
                for dim, size in enumerate(shape):
                    self._note(size, position, dim)
        self.symbols = tuple(self._places)
        self.is_whole = _free_symbols(graph) <= set(self._places)

    def _note(self, size: Any, position: int, dim: int | None) -> None:
        expr = expression(size)
        if not isinstance(expr, sympy.Symbol) or expr in self._places:
            return
        self._places[expr] = (position, dim)
        bounds = size.node.shape_env.var_to_range.get(expr)
        upper = bounds.upper if bounds is not None else _UNBOUNDED
        is_bounded = isinstance(upper, (int, sympy.Integer)) and upper < _UNBOUNDED
        self._largest[expr] = int(upper) if is_bounded else _UNBOUNDED

    def symbols_of(self, positions: Sequence[int]) -> set[sympy.Symbol]:
        """Returns the symbols in the sizes of some inputs."""
        known = (position for position in positions if position < len(self._of_input))
        return {symbol for position in known for symbol in self._of_input[position]}

    def read(self, inputs: Sequence[Any]) -> dict[sympy.Symbol, int]:
        """Returns the true sizes of a call."""
        return {
            symbol: int(inputs[position] if dim is None else inputs[position].shape[dim])
            for symbol, (position, dim) in self._places.items()
        }

    def bucket(self, symbol: sympy.Symbol, size: int, buckets: Sequence[int] | None) -> int:
        """Returns the bucket of one size."""
        return round_up(size, buckets, self._largest[symbol])


def _free_symbols(graph: fx.Graph) -> set[Any]:
    """Returns all size symbols in a graph, including data-dependent ones."""
    return {symbol for node in graph.nodes for symbol in _symbols_in(node.meta.get("val"))}


def _symbols_in(value: Any) -> set[Any]:
    if isinstance(value, (tuple, list)):
        return {symbol for part in value for symbol in _symbols_in(part)}
    if isinstance(value, (torch.SymInt, torch.SymBool)):
        return set(value.node.expr.free_symbols)
    if not isinstance(value, torch.Tensor):
        return set()
    shape: tuple[Any, ...] = tuple(value.shape)
    return {symbol for size in shape for symbol in _symbols_in(size)}


# A dimension is a row-major product of factors. A dynamic factor holds true values at its first
# positions and arbitrary ones after them. A view that joins two dimensions keeps both factors, so
# the true positions stay known.


@dataclass(frozen=True)
class Factor:
    """Part of a dimension: `true` of its `size` positions hold true values; a number if all do."""

    true: Expr
    size: int

    @property
    def is_padded(self) -> bool:
        """Whether it may contain padding."""
        return not isinstance(self.true, int)


Dim = tuple[Factor, ...]
Dims = tuple[Dim, ...]


def whole(size: int) -> Dim:
    """Returns a dimension without padding."""
    return () if size == 1 else (Factor(size, size),)


def is_padded(dim: Dim) -> bool:
    """Whether a dimension has padding."""
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
    """Distributes a tensor's factors over a view's dimensions; None if it splits a dynamic one."""
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
    """Returns a canonical form: adjacent static factors are merged."""
    made: list[Factor] = []
    for factor in dim:
        if made and not factor.is_padded and not made[-1].is_padded:
            size = made.pop().size * factor.size
            made.append(Factor(size, size))
        else:
            made.append(factor)
    return tuple(made)
