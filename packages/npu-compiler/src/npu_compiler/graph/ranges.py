"""Computes an interval of possible values for each integer node of a graph, in one pass.

The bounds of an integer or bool tensor, or of a symbolic integer, hold for every element in every
call, for all inputs. They follow torch's arithmetic in the width of the dtype: an operation that
may wrap around has the full range of its dtype.

Known are constants and frozen weights, sizes (with torch's guards on symbolic ones), arange and
other creation, views and copies, casts among integers, `+ - *`, floor division, remainder, clamp,
minimum and maximum, where and masked_fill, bitwise ops, comparisons, sums and cumulative sums along
known sizes, the largest and smallest element, and the indices of argmax, topk, sort and similar
ops. Inputs and all other calls have the full range. An interval may also have a symbolic upper
bound: `arange(n)` is below `n`.

A device that computes int64 in 32 bits differs from torch if an intermediate interval exceeds 32
bits. `int64_bits=32` computes the bounds for such a device: an int64 that may exceed 32 bits has
the full range of 32 bits.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.graph.float_ranges import cast_bounds

__all__ = ["Interval", "dtype_range", "integer_ranges", "interval_of_size"]

aten = torch.ops.aten

_INT64 = torch.iinfo(torch.int64)
# Reading a larger constant costs more than the bounds are worth.
_MOST_ELEMENTS = 1 << 22
_INDICES = (torch.int32, torch.int64)


@dataclass(frozen=True)
class Interval:
    """Bounds of integers, both inclusive."""

    low: int  # no value is less
    high: int  # no value is greater
    # An expression in symbolic sizes that exceeds every value, or None.
    below: sympy.Expr | None = None

    def is_within(self, low: int, high: int) -> bool:
        """Whether every value is between low and high, both inclusive."""
        return low <= self.low and self.high <= high

    def is_below(self, size: int | torch.SymInt) -> bool:
        """Whether every value is below a size, for all values of a symbolic size."""
        least = interval_of_size(size)
        if self.high < least.low:
            return True
        if self.below is None or isinstance(size, int):
            return False
        rest = sympy.expand(size.node.expr - self.below)
        if rest.is_number:
            return bool(rest >= 0)
        return _bounds(rest, size)[0] >= 0


Get = Callable[[Any], Interval]
_Rule = Callable[[fx.Node, Get], Interval | None]
_RULES: dict[Any, _Rule] = {}


def integer_ranges(
    graph: fx.Graph,
    constants: Mapping[str, torch.Tensor] | None = None,
    *,
    int64_bits: int = 64,
    inputs: Mapping[str, Interval] | None = None,
    most_size: int | None = None,
    from_floats: bool = False,
) -> dict[fx.Node, Interval]:
    """Returns the interval of each integer, bool or symbolic integer node of a graph.

    Args:
        graph: aten calls with fake values in `meta["val"]`. Values of a `get_attr` tensor are used
            if the graph has an owning module.
        constants: placeholder name -> frozen tensor.
        int64_bits: 64 for torch's arithmetic, 32 for a device without wider integers.
        inputs: name of a node -> assumed interval of its values.
        most_size: upper bound that is assumed for symbolic sizes and numbers of elements.
        from_floats: use bounds of npu_compiler.graph.float_ranges for casts of floats, which hold
            for finite floats.
    """
    with _sizes_up_to(most_size):
        return _walk(graph, dict(constants or {}), int64_bits, dict(inputs or {}), from_floats)


def _walk(
    graph: fx.Graph,
    known: Mapping[str, torch.Tensor],
    int64_bits: int,
    inputs: Mapping[str, Interval],
    from_floats: bool,
) -> dict[fx.Node, Interval]:
    found: dict[fx.Node, Interval] = {}

    def get(operand: Any) -> Interval:
        if isinstance(operand, fx.Node):
            return found.get(operand) or dtype_range(torch.int64)
        if isinstance(operand, (int, torch.SymInt)):
            return interval_of_size(operand)
        return dtype_range(torch.int64)

    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            found[node] = interval_of_size(value)
            continue
        held = _constant(node, known)
        dtype = _integer_dtype(value if held is None else held)
        if dtype is None:
            continue
        if node.name in inputs:
            found[node] = inputs[node.name]
            continue
        if from_floats and (bounds := cast_bounds(node, get)) is not None:
            found[node] = _fitted(Interval(*bounds), dtype)
            continue
        if int64_bits == 32 and dtype in (torch.int64, torch.uint64, torch.uint32):
            dtype = torch.int32
        found[node] = _fitted(_of_constant(held) if held is not None else _of(node, get), dtype)
    return found


def dtype_range(dtype: torch.dtype) -> Interval:
    """Returns the range of an integer or bool dtype."""
    if dtype is torch.bool:
        return Interval(0, 1)
    info = torch.iinfo(dtype)
    return Interval(info.min, info.max)


def interval_of_size(size: int | torch.SymInt) -> Interval:
    """Returns the interval of a number or a symbolic number, without a guard."""
    if not isinstance(size, torch.SymInt):
        return Interval(int(size), int(size))
    expr = size.node.expr
    if expr.is_number:
        return Interval(int(expr), int(expr))
    low, high = _bounds(expr, size)
    return Interval(low, high, expr + 1)


_most_size: ContextVar[int | None] = ContextVar("most_size", default=None)


@contextlib.contextmanager
def _sizes_up_to(most: int | None) -> Iterator[None]:
    token = _most_size.set(most)
    try:
        yield
    finally:
        _most_size.reset(token)


def _bounds(expr: sympy.Expr, size: torch.SymInt) -> tuple[int, int]:
    shape_env = size.node.shape_env
    if shape_env is None:
        return _INT64.min, _INT64.max
    most = _most_size.get()
    if most is None:
        bounds = shape_env.bound_sympy(expr)
    else:
        ranges = {
            symbol: shape_env.bound_sympy(symbol) & ValueRanges(0, most)
            for symbol in expr.free_symbols
        }
        bounds = bound_sympy(expr, ranges)
    low, high = bounds.lower, bounds.upper
    return (
        int(low) if getattr(low, "is_Integer", False) else _INT64.min,
        int(high) if getattr(high, "is_Integer", False) else _INT64.max,
    )


def _integer_dtype(value: Any) -> torch.dtype | None:
    if not isinstance(value, torch.Tensor):
        return None
    dtype = value.dtype
    return None if dtype.is_floating_point or dtype.is_complex else dtype


def _constant(node: fx.Node, known: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    if node.op == "placeholder":
        return known.get(node.name)
    if node.op != "get_attr" or node.graph.owning_module is None:
        return None
    held = operator.attrgetter(str(node.target))(node.graph.owning_module)
    return held if isinstance(held, torch.Tensor) else None


def _of_constant(held: torch.Tensor) -> Interval | None:
    is_plain = type(held) in (torch.Tensor, torch.nn.Parameter) and not held.is_meta
    if not is_plain or held.dtype not in _INDICES or not 0 < held.numel() <= _MOST_ELEMENTS:
        return None
    values = held.detach().cpu()
    least, most = torch.aminmax(values)
    return Interval(int(least), int(most))


def _of(node: fx.Node, get: Get) -> Interval | None:
    rule = _RULES.get(node.target) if node.op == "call_function" else None
    return None if rule is None else rule(node, get)


def _fitted(interval: Interval | None, dtype: torch.dtype) -> Interval:
    """Returns the interval, or the dtype's full range if it may wrap around."""
    whole = dtype_range(dtype)
    if interval is None or not interval.is_within(whole.low, whole.high):
        return whole
    return interval


def _rule(*targets: Any) -> Callable[[_Rule], _Rule]:
    def register(function: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(targets, function))
        return function

    return register


def _argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _join(*intervals: Interval) -> Interval:
    """Returns the interval of an elementwise choice among values."""
    low = min(one.low for one in intervals)
    high = max(one.high for one in intervals)
    first = max(intervals, key=lambda one: one.below is not None)
    if first.below is None:
        return Interval(low, high)
    is_common = all(one.below == first.below or one.high <= first.low for one in intervals)
    return Interval(low, high, first.below if is_common else None)


def _union(*intervals: Interval) -> Interval:
    """Like _join for values that are not chosen elementwise: some may be empty."""
    (below, *others) = {one.below for one in intervals}
    found = _join(*(replace(one, below=None) for one in intervals))
    return found if others else replace(found, below=below)


def _shifted(interval: Interval, by: Interval) -> Interval:
    below = None
    if interval.below is not None and by.low == by.high:
        below = interval.below + by.low
    elif by.below is not None and interval.low == interval.high:
        below = by.below + interval.low
    return Interval(interval.low + by.low, interval.high + by.high, below)


def _scaled(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Interval(min(ends), max(ends))


def _size(node: Any, dim: int | None) -> Any:
    """Returns a tensor's size along a dim, or its number of elements."""
    value = node.meta["val"]
    if dim is None:
        return value.numel()
    shape: tuple[Any, ...] = tuple(value.shape)
    return shape[dim] if shape else 1


def _counted(node: Any, count: int) -> int:
    """Returns a number of elements, bounded by the limit of one symbolic size."""
    most = _most_size.get()
    is_symbolic = any(isinstance(size, torch.SymInt) for size in node.meta["val"].shape)
    return count if most is None or not is_symbolic else min(count, most)


def _positions(size: Any) -> Interval:
    """Returns the interval of indices into a dim of this size."""
    whole = interval_of_size(size)
    return Interval(0, max(whole.high - 1, 0), None if whole.below is None else whole.below - 1)


# Creation


def _number_at(place: int) -> Callable[[fx.Node, Get], Interval]:
    return lambda node, get: get(node.args[place])


def _always(low: int, high: int) -> Callable[[fx.Node, Get], Interval]:
    return lambda node, get: Interval(low, high)


_rule(aten.scalar_tensor.default)(_number_at(0))
_rule(aten.full.default, aten.full_like.default)(_number_at(1))
_rule(aten.new_full.default)(_number_at(2))
# Uninitialized memory may have any value, and programs have zeros there.
_rule(aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default)(_always(0, 0))
_rule(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default)(
    _always(0, 0)
)
_rule(aten.ones.default, aten.ones_like.default, aten.new_ones.default)(_always(1, 1))
_rule(aten.one_hot.default)(_always(0, 1))
_rule(aten.sign.default)(_always(-1, 1))


@_rule(aten.fill.Scalar, aten.fill.Tensor, aten.copy.default)
def _filled(node: fx.Node, get: Get) -> Interval | None:
    source = node.args[1]
    if isinstance(source, fx.Node) and isinstance(source.meta.get("val"), torch.Tensor):
        return get(source) if _integer_dtype(source.meta["val"]) is not None else None
    return get(source)


@_rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(node: fx.Node, get: Get) -> Interval | None:
    given = list(node.args)
    if not all(isinstance(one, (int, fx.Node)) for one in given):
        return None  # float arguments round unpredictably
    start, end = (0, given[0]) if len(given) == 1 else given[:2]
    step = get(_argument(node, 2, "step", 1))
    first, last = get(start), get(end)
    if step.low > 0:
        below = None if last.below is None else last.below - 1
        return Interval(first.low, max(last.high - 1, first.low), below)
    if step.high < 0:
        return Interval(min(last.low + 1, first.high), first.high)
    return None


@_rule(aten.randint.low, aten.randint.default)
def _randint(node: fx.Node, get: Get) -> Interval:
    is_from_zero = node.target is aten.randint.default
    low = Interval(0, 0) if is_from_zero else get(node.args[0])
    return Interval(low.low, get(node.args[0 if is_from_zero else 1]).high - 1)


# Moves of values


@_rule(
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default,
    aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int,
    aten.clone.default, aten.alias.default, aten.detach.default, aten.flip.default,
    aten.roll.default, aten.repeat.default, aten.index_select.default, aten.gather.default,
    aten.index.Tensor, aten._unsafe_index.Tensor, aten.as_strided.default, aten.diagonal.default,
    aten.lift_fresh_copy.default, aten.embedding.default, aten.split.Tensor,
    aten.split_with_sizes.default, aten.unbind.int, aten._to_copy.default, aten.amax.default,
    aten.amin.default, aten.max.default, aten.min.default, aten.take.default,
    torch.ops.prims.convert_element_type.default, aten._reshape_alias.default,
    aten._reshape_copy.default, aten.view_copy.default, aten.expand_copy.default,
    aten.permute_copy.default, aten.slice_copy.Tensor, aten.select_copy.int, aten.narrow.default,
    aten.unfold.default, aten.repeat_interleave.self_int, aten.contiguous.default,
    aten.trunc.default, aten.floor.default, aten.ceil.default, aten.round.default,
)  # fmt: skip
def _same(node: fx.Node, get: Get) -> Interval | None:
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return None
    # A cast from floats may have any value.
    value = source.meta.get("val")
    is_integer = _integer_dtype(value) is not None
    return get(source) if is_integer else None


@_rule(aten.cat.default, aten.stack.default)
def _cat(node: fx.Node, get: Get) -> Interval | None:
    parts = node.args[0]
    assert isinstance(parts, Sequence)
    return _union(*map(get, parts)) if parts else None


@_rule(aten.constant_pad_nd.default)
def _pad(node: fx.Node, get: Get) -> Interval:
    return _union(get(node.args[0]), get(_argument(node, 2, "value", 0)))


@_rule(aten.tril.default, aten.triu.default)
def _triangle(node: fx.Node, get: Get) -> Interval:
    return _join(get(node.args[0]), Interval(0, 0))


@_rule(operator.getitem)
def _item(node: fx.Node, get: Get) -> Interval | None:
    source, index = node.args
    assert isinstance(source, fx.Node)
    if source.target in (aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int):
        return get(source.args[0])
    if source.target in _POOLS and index == 1:
        return _pooled(source)
    if source.target not in _PAIRS:
        return None
    values = source.args[0]
    if index == 0:
        return get(values)
    return _positions(_size(values, _argument(source, _PAIRS[source.target], "dim", -1)))


# Ops that return values and their positions along a dim -> argument position of the dim.
_PAIRS = {
    aten.topk.default: 2,
    aten.sort.default: 1,
    aten.sort.stable: 2,
    aten.max.dim: 1,
    aten.min.dim: 1,
    aten.median.dim: 1,
    aten.nanmedian.dim: 1,
    aten.mode.default: 1,
    aten.kthvalue.default: 2,
    aten.cummax.default: 1,
    aten.cummin.default: 1,
}


# Poolings that return values and their positions in a plane -> dims of a plane.
_POOLS: dict[Any, int] = {
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}


def _pooled(node: fx.Node) -> Interval:
    count = 1
    for dim in range(-_POOLS[node.target], 0):
        count *= interval_of_size(_size(node.args[0], dim)).high
    return Interval(0, max(_counted(node.args[0], count) - 1, 0))


@_rule(aten.argmax.default, aten.argmin.default, aten.argsort.default)
def _place(node: fx.Node, get: Get) -> Interval:
    default = -1 if node.target is aten.argsort.default else None
    return _positions(_size(node.args[0], _argument(node, 1, "dim", default)))


@_rule(torch.ops.npu.lightning_indexer.default)
def _picked(node: fx.Node, get: Get) -> Interval:
    table, key = node.kwargs.get("block_table"), node.args[1]
    pages = 1 if table is None else interval_of_size(_size(table, 1)).high
    return Interval(-1, max(_positions(_size(key, -3)).high, 0) * pages + pages - 1)


@_rule(aten.multinomial.default)
def _drawn(node: fx.Node, get: Get) -> Interval:
    return _positions(_size(node.args[0], -1))


@_rule(aten.bucketize.Tensor, aten.searchsorted.Tensor)
def _bucket(node: fx.Node, get: Get) -> Interval:
    place = 1 if node.target is aten.bucketize.Tensor else 0
    return Interval(0, interval_of_size(_size(node.args[place], -1)).high)


# Arithmetic


@_rule(aten.add.Tensor, aten.add.Scalar)
def _add(node: fx.Node, get: Get) -> Interval:
    alpha = get(_argument(node, 2, "alpha", 1))
    other = get(node.args[1])
    return _shifted(get(node.args[0]), other if alpha == Interval(1, 1) else _scaled(other, alpha))


@_rule(aten.sub.Tensor, aten.sub.Scalar)
def _sub(node: fx.Node, get: Get) -> Interval:
    other = _scaled(get(node.args[1]), get(_argument(node, 2, "alpha", 1)))
    return _shifted(get(node.args[0]), Interval(-other.high, -other.low))


@_rule(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(node: fx.Node, get: Get) -> Interval:
    own = _scaled(get(node.args[0]), get(_argument(node, 2, "alpha", 1)))
    return _shifted(get(node.args[1]), Interval(-own.high, -own.low))


@_rule(aten.mul.Tensor, aten.mul.Scalar)
def _mul(node: fx.Node, get: Get) -> Interval:
    a, b = get(node.args[0]), get(node.args[1])
    for one, other in ((a, b), (b, a)):
        # A mask gives 0 or the value.
        if one.is_within(0, 1) and other.low >= 0:
            return replace(other, low=0)
    return _scaled(a, b)


@_rule(aten.square.default, aten.pow.Tensor_Scalar)
def _power(node: fx.Node, get: Get) -> Interval | None:
    own, exponent = get(node.args[0]), _argument(node, 1, "exponent", 2)
    if exponent not in (2, 3):
        return None
    ends = [own.low**exponent, own.high**exponent, *([0] if own.low <= 0 <= own.high else [])]
    return Interval(min(ends), max(ends))


@_rule(aten.relu.default)
def _relu(node: fx.Node, get: Get) -> Interval:
    own = get(node.args[0])
    return replace(own, low=max(own.low, 0), high=max(own.high, 0))


@_rule(aten.bitwise_not.default)
def _not(node: fx.Node, get: Get) -> Interval:
    own = get(node.args[0])
    is_bool = node.meta["val"].dtype is torch.bool
    return Interval(0, 1) if is_bool else Interval(-1 - own.high, -1 - own.low)


@_rule(aten.fmod.Scalar, aten.fmod.Tensor)
def _fmod(node: fx.Node, get: Get) -> Interval:
    own, divisor = get(node.args[0]), get(node.args[1])
    most = max(abs(divisor.low), abs(divisor.high), 1) - 1
    return Interval(max(-most, min(own.low, 0)), min(most, max(own.high, 0)))


@_rule(aten.neg.default)
def _neg(node: fx.Node, get: Get) -> Interval:
    own = get(node.args[0])
    return Interval(-own.high, -own.low)


@_rule(aten.abs.default)
def _abs(node: fx.Node, get: Get) -> Interval:
    own = get(node.args[0])
    if own.low >= 0:
        return own
    return Interval(0 if own.high >= 0 else -own.high, max(-own.low, own.high))


@_rule(aten.remainder.Scalar, aten.remainder.Tensor)
def _remainder(node: fx.Node, get: Get) -> Interval | None:
    own, divisor = get(node.args[0]), get(node.args[1])
    if divisor.low <= 0:
        return None
    if own.low >= 0 and own.high < divisor.low:
        return own
    below = None if divisor.below is None else divisor.below - 1
    return Interval(0, divisor.high - 1, below)


@_rule(aten.floor_divide.default, aten.div.Tensor_mode, aten.div.Scalar_mode)
def _divide(node: fx.Node, get: Get) -> Interval | None:
    own, divisor = get(node.args[0]), get(node.args[1])
    if divisor.low <= 0:
        return None
    ends = [x // y for x in (own.low, own.high) for y in (divisor.low, divisor.high)]
    # Truncation makes negative quotients at most one larger.
    most = max(ends) if own.high >= 0 else max(ends) + 1
    return Interval(min(ends), most, own.below if own.low >= 0 else None)


@_rule(aten.minimum.default, aten.min.other, aten.clamp_max.default, aten.clamp_max.Tensor)
def _minimum(node: fx.Node, get: Get) -> Interval:
    return _at_most(get(node.args[0]), get(node.args[1]))


@_rule(aten.maximum.default, aten.max.other, aten.clamp_min.default, aten.clamp_min.Tensor)
def _maximum(node: fx.Node, get: Get) -> Interval:
    return _at_least(get(node.args[0]), get(node.args[1]))


@_rule(aten.clamp.default, aten.clamp.Tensor)
def _clamp(node: fx.Node, get: Get) -> Interval:
    own = get(node.args[0])
    low, high = _argument(node, 1, "min"), _argument(node, 2, "max")
    own = own if low is None else _at_least(own, get(low))
    return own if high is None else _at_most(own, get(high))


def _at_most(a: Interval, b: Interval) -> Interval:
    below = a.below if a.below is not None else b.below
    return Interval(min(a.low, b.low), min(a.high, b.high), below)


def _at_least(a: Interval, b: Interval) -> Interval:
    below = _join(a, b).below
    return Interval(max(a.low, b.low), max(a.high, b.high), below)


@_rule(aten.bitwise_and.Tensor, aten.bitwise_and.Scalar)
def _and(node: fx.Node, get: Get) -> Interval | None:
    a, b = get(node.args[0]), get(node.args[1])
    highs = [one.high for one in (a, b) if one.low >= 0]
    return Interval(0, min(highs)) if highs else None


@_rule(
    aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar
)
def _or(node: fx.Node, get: Get) -> Interval | None:
    a, b = get(node.args[0]), get(node.args[1])
    if min(a.low, b.low) < 0:
        return None
    return Interval(0, (1 << max(a.high, b.high).bit_length()) - 1)


# Choices


@_rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(node: fx.Node, get: Get) -> Interval:
    return _join(get(node.args[1]), get(node.args[2]))


@_rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(node: fx.Node, get: Get) -> Interval:
    return _join(get(node.args[0]), get(node.args[2]))


@_rule(aten.select_scatter.default, aten.slice_scatter.default)
def _written(node: fx.Node, get: Get) -> Interval:
    return _union(get(node.args[0]), get(node.args[1]))


@_rule(aten.index_put.default)
def _index_put(node: fx.Node, get: Get) -> Interval | None:
    is_sum = _argument(node, 3, "accumulate", False)
    return None if is_sum else _union(get(node.args[0]), get(node.args[2]))


@_rule(aten.index_copy.default, aten.scatter.src, aten.scatter.value)
def _copied(node: fx.Node, get: Get) -> Interval:
    return _union(get(node.args[0]), get(node.args[3]))


@_rule(aten.histc.default)
def _counts(node: fx.Node, get: Get) -> Interval:
    size = interval_of_size(_size(node.args[0], None)).high
    return Interval(0, _counted(node.args[0], size))


# Sums


@_rule(aten.sum.default, aten.sum.dim_IntList)
def _sum(node: fx.Node, get: Get) -> Interval | None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    if _integer_dtype(source.meta.get("val")) is None:
        return None
    dims: Any = _argument(node, 1, "dim")
    rank = source.meta["val"].dim()
    count = 1
    for dim in dims or range(rank):
        count *= interval_of_size(_size(source, dim)).high if rank else 1
    own, count = get(source), _counted(source, count)
    return Interval(min(own.low * count, 0), max(own.high * count, 0))


@_rule(aten.cumsum.default)
def _cumsum(node: fx.Node, get: Get) -> Interval | None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    is_counts = source.target is aten.histc.default  # integers, possibly stored as floats
    if _integer_dtype(source.meta.get("val")) is None and not is_counts:
        return None
    own, dim = _counts(source, get) if is_counts else get(source), _argument(node, 1, "dim")
    assert own is not None  # counts are bounded
    size = _size(source, dim)
    count = interval_of_size(size).high
    # The sum of a mask is at most the number of elements.
    is_counting = own.is_within(0, 1) and isinstance(size, torch.SymInt)
    below = size.node.expr + 1 if is_counting else None
    return Interval(min(own.low, own.low * count), max(own.high, own.high * count), below)
