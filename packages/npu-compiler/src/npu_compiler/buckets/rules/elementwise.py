"""Rules of elementwise calls, creation and indexing."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from npu_compiler.buckets.call import Call, Rule, rule
from npu_compiler.buckets.sizes import Dim, Dims, is_padded

__all__ = ["POINTWISE", "broadcast", "keep_ranges"]

aten = torch.ops.aten

# Integer division by arbitrary values in padding may crash the process.
_DIVISIONS = frozenset({"div", "floor_divide", "remainder", "fmod"})


def broadcast(call: Call, *shapes: Dims) -> Dims:
    """Returns the dims of a result; CannotPad if operands' true positions differ."""
    rank = max(map(len, shapes))
    made: list[Dim] = []
    for axis in range(-rank, 0):
        meeting = [shape[axis] for shape in shapes if len(shape) >= -axis]
        wide = [dim for dim in meeting if dim]
        if any(dim != wide[0] for dim in wide):
            raise call.refuse("operands are padded differently", *wide)
        made.append(wide[0] if wide else ())
    return tuple(made)


def keep_ranges(call: Call, source: fx.Node, *, pads: bool = True) -> Any:
    """Records that a result holds the elements of a source; for rules that return a function."""
    writer = call.writer

    def note(made: fx.Node) -> None:
        value, before = made.meta["val"], source.meta["val"]
        if value.dtype.is_floating_point or before.dtype.is_floating_point:
            return
        if source in writer.values:
            writer.values[made] = writer.values[source]
        if pads and source in writer.pads:
            writer.pads[made] = writer.pads[source]

    return note


@rule(aten.floor_divide.default)
def _pointwise(call: Call) -> Any:
    writer = call.writer
    tensors = [value for _, value in call.items() if isinstance(value, fx.Node)]
    dims = broadcast(call, *(writer.dims[source] for source in tensors))
    if call.target._schema.name.partition("::")[2] in _DIVISIONS:
        divisor = call.get("other")
        if isinstance(divisor, fx.Node) and not divisor.meta["val"].dtype.is_floating_point:
            call.set("other", writer.all_masked(divisor, 1))

    def result(made: fx.Node) -> Dims:
        _shift_range(call, made)
        return dims

    return result


def _shift_range(call: Call, made: fx.Node) -> None:
    """Returns the bounds of an integer tensor plus a number."""
    if call.target is not aten.add.Tensor or call.get("alpha") != 1:
        return
    source, other = call.get("self"), call.get("other")
    if not isinstance(source, fx.Node) or not isinstance(other, int):
        return
    for ranges in (call.writer.values, call.writer.pads):
        if source in ranges and not made.meta["val"].dtype.is_floating_point:
            low, high = ranges[source]
            ranges[made] = (low + other, high + other)


POINTWISE = Rule(_pointwise, frozenset())


@rule(
    aten.clone.default,
    aten._to_copy.default,
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    torch.ops.prims.convert_element_type.default,
)
def _same(call: Call) -> Any:
    source = next(value for _, value in call.items() if isinstance(value, fx.Node))
    note = keep_ranges(call, source)

    def result(made: fx.Node) -> Dims:
        note(made)
        return call.writer.dims[source]

    return result


@rule(
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.empty_like.default,
    aten.full_like.default,
)
def _same_shape(call: Call) -> Any:
    return call.dims("self")


@rule(aten.tril.default, aten.triu.default)
def _triangle(call: Call) -> Any:
    dims = call.dims("self")
    call.require_prefix("a triangle of joined dimensions", *dims[-2:])
    return dims


@rule(
    aten.full.default,
    aten.zeros.default,
    aten.ones.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
    sizes=("size",),
)
def _filled(call: Call) -> Any:
    return call.expected


@rule(aten.arange.default, aten.arange.start, aten.arange.start_step, sizes=("end",))
def _arange(call: Call) -> Any:
    names = dict(call.items())
    start, step = names.get("start", 0), names.get("step", 1)
    expected: Dims = call.expected

    def result(made: fx.Node) -> Dims:
        if isinstance(start, int) and step == 1:
            last = start + call.writer.shape(made)[0] - 1
            call.writer.values[made] = call.writer.pads[made] = (start, last)
        return expected

    return result


def _within(call: Call, index: fx.Node, size: int) -> fx.Node:
    """Returns an index that is also in range in padding."""
    writer = call.writer
    low, high = writer.pads.get(index, writer.values.get(index, (-1, size)))
    if low >= 0 and high < size:
        return index
    return writer.all_masked(index, 0)


def _from_start(call: Call, index: fx.Node, dim: Dim) -> fx.Node:
    """Returns an index that counts from the start, because padding moves a dimension's end."""
    writer = call.writer
    if not is_padded(dim) or writer.values.get(index, (-1, 0))[0] >= 0:
        return index
    if not writer.dims[index]:
        raise call.refuse("an index may count from the end", dim)
    counted = writer.call(aten.add.Tensor, index, writer.count(dim[0].true))
    negative = writer.call(aten.lt.Scalar, index, 0)
    made = writer.call(aten.where.self, negative, counted, index)
    writer.dims[made] = writer.dims[index]
    return made


def _told(call: Call, index: fx.Node, dim: Dim, size: int, *, wraps: bool = False) -> fx.Node:
    """Returns an index that exceeds the padded end if it exceeds the true end.

    The program then reports it. With `wraps`, negative indices were already converted.
    """
    writer = call.writer
    if not call.checks_indices or not is_padded(dim):
        return index
    count = writer.count(dim[0].true)
    if not writer.dims[index]:
        count = writer.call(aten.view.default, count, [])
    outside = writer.call(aten.ge.Tensor, index, count)
    if wraps:
        before = writer.call(aten.lt.Scalar, index, 0)
        outside = writer.call(aten.bitwise_or.Tensor, outside, before)
    made = writer.call(aten.masked_fill.Scalar, index, outside, size)
    writer.dims[made] = writer.dims[index]
    return made


@rule(aten.embedding.default)
def _embedding(call: Call) -> Any:
    weight, indices = call.dims("weight"), call.dims("indices")
    call.require_prefix("picks from joined dimensions", weight[0])
    size = call.writer.shape(call.get("weight"))[0]
    index = _told(call, call.get("indices"), weight[0], size)
    call.set("indices", _within(call, index, size))
    return (*indices, weight[1])


@rule(aten.index_select.default)
def _index_select(call: Call) -> Any:
    source, dims = call.get("self"), call.dims("self")
    axis = call.writer.axis(source, call.get("dim"))
    call.require_prefix("picks from joined dimensions", dims[axis])
    size = call.writer.shape(source)[axis]
    index = _told(call, call.get("index"), dims[axis], size)
    call.set("index", _within(call, index, size))
    return (*dims[:axis], *call.dims("index"), *dims[axis + 1 :])


@rule(aten.gather.default)
def _gather(call: Call) -> Any:
    source, dims = call.get("self"), call.dims("self")
    axis = call.writer.axis(source, call.get("dim"))
    index = call.dims("index")
    call.require_prefix("picks from joined dimensions", dims[axis])
    for place, (ours, theirs) in enumerate(zip(index, dims, strict=True)):
        # With true sizes the index is nowhere larger, so prefixes match; joined dims are not
        # prefixes.
        if place != axis and ours != theirs and (len(ours) > 1 or len(theirs) > 1):
            raise call.refuse("operands are padded differently", ours, theirs)
    size = call.writer.shape(source)[axis]
    told = _told(call, call.get("index"), dims[axis], size)
    call.set("index", _within(call, told, size))
    return index


@rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(call: Call) -> Any:
    source, dims = call.get("self"), call.dims("self")
    indices = list(call.get("indices"))
    places = [place for place, index in enumerate(indices) if index is not None]
    if any(not _is_integer(indices[place]) for place in places):
        raise call.refuse("a mask picks elements", *dims)
    call.require_prefix("picks from joined dimensions", *(dims[place] for place in places))
    for place in places:
        size = call.writer.shape(source)[place]
        index = _from_start(call, indices[place], dims[place])
        index = _told(call, index, dims[place], size, wraps=True)
        if index is indices[place]:
            index = _within(call, index, size)
        else:
            index = call.writer.all_masked(index, 0)
        indices[place] = index
    call.set("indices", indices)
    picked = broadcast(call, *(call.writer.dims[indices[place]] for place in places))
    rest = [dim for place, dim in enumerate(dims) if place not in places]
    neighbours = places == list(range(places[0], places[-1] + 1))
    first = places[0] if neighbours else 0
    made: Dims = (*rest[:first], *picked, *rest[first:])
    return made


def _is_integer(index: fx.Node) -> bool:
    return index.meta["val"].dtype not in (torch.bool, torch.uint8)
