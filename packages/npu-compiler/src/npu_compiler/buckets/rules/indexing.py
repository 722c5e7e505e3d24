"""Rules of ops that pick elements by index."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from npu_compiler.buckets.call import Call, rule
from npu_compiler.buckets.factors import Dim, Dims, is_padded
from npu_compiler.buckets.rules.elementwise import broadcast

__all__: list[str] = []

aten = torch.ops.aten


def _within(call: Call, index: fx.Node, size: int) -> fx.Node:
    """An index that stays inside also where it has no true value."""
    writer = call.writer
    low, high = writer.pads.get(index, writer.values.get(index, (-1, size)))
    if low >= 0 and high < size:
        return index
    return writer.all_masked(index, 0)


def _from_start(call: Call, index: fx.Node, dim: Dim) -> fx.Node:
    """An index that counts from the start: the end of a padded dimension is not the true one."""
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
    """An index that is beyond the padded end, where it is beyond the true one.

    The program tells it then. With `wraps`, negative ones were counted from the end before.
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
        # With true sizes the index is nowhere larger, so that prefixes meet; joined dims are none.
        if place != axis and ours != theirs and (len(ours) > 1 or len(theirs) > 1):
            raise call.refuse("differently padded tensors meet", ours, theirs)
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
