"""Rules of ops that move elements: shapes, orders, parts and concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from npu_compiler.buckets.call import Call, PaddedSize, Written, rule
from npu_compiler.buckets.rules.elementwise import keep_ranges
from npu_compiler.buckets.sizes import Dim, Dims, is_padded, regroup, whole

__all__: list[str] = []

aten = torch.ops.aten

# The end of a slice without an end.
_TO_THE_END = 2**62


def _moved(call: Call, dims: Dims, *, pads: bool = True) -> Any:
    """Returns the result's dims for ops that keep elements; propagates bounds of integers."""
    note = keep_ranges(call, call.get("self"), pads=pads)

    def result(made: fx.Node) -> Dims:
        note(made)
        return dims

    return result


@rule(aten.view.default, aten.reshape.default, aten._unsafe_view.default, sizes=("size", "shape"))
def _view(call: Call) -> Any:
    dims = call.dims("self")
    note = keep_ranges(call, call.get("self"))

    def result(made: fx.Node) -> Dims:
        found = regroup(dims, call.writer.shape(made))
        if found is None:
            raise call.refuse("the view splits a dynamic size", *dims)
        note(made)
        return found

    return result


@rule(aten.expand.default, sizes=("size",))
def _expand(call: Call) -> Any:
    dims, expected = call.dims("self"), call.expected
    added = len(expected) - len(dims)
    made = tuple(
        dims[axis - added] if axis >= added and dims[axis - added] else expected[axis]
        for axis in range(len(expected))
    )
    return _moved(call, made, pads=not any(map(is_padded, made)) or made[added:] == dims)


@rule(aten.permute.default)
def _permute(call: Call) -> Any:
    dims = call.dims("self")
    return _moved(call, tuple(dims[axis] for axis in call.get("dims")))


@rule(aten.transpose.int)
def _transpose(call: Call) -> Any:
    dims = list(call.dims("self"))
    if dims:
        a, b = (call.writer.axis(call.get("self"), call.get(name)) for name in ("dim0", "dim1"))
        dims[a], dims[b] = dims[b], dims[a]
    return _moved(call, tuple(dims))


@rule(aten.t.default)
def _t(call: Call) -> Any:
    return _moved(call, tuple(reversed(call.dims("self"))))


@rule(aten.unsqueeze.default)
def _unsqueeze(call: Call) -> Any:
    dims = list(call.dims("self"))
    dims.insert(call.get("dim") % (len(dims) + 1), ())
    return _moved(call, tuple(dims))


@rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(call: Call) -> Any:
    dims = call.dims("self")
    names = dict(call.items())
    given = names.get("dim", range(len(dims)))
    axes = {axis % max(len(dims), 1) for axis in ((given,) if isinstance(given, int) else given)}
    call.require_whole("a dynamic size may be 1", *(dims[a] for a in axes))
    return _moved(call, tuple(dim for axis, dim in enumerate(dims) if axis not in axes or dim))


@rule(aten.slice.Tensor, sizes=("end",))
def _slice(call: Call) -> Any:
    dims = call.dims("self")
    axis = call.writer.axis(call.get("self"), call.get("dim"))
    start, end, step = call.get("start") or 0, call.get("end"), call.get("step")
    if start == 0 and step == 1 and (end is None or int(end) >= _TO_THE_END):
        return _moved(call, dims)
    dim, expected = dims[axis], call.expected[axis]
    if len(dim) > 1 or (start < 0 and is_padded(dim)):
        call.require_whole("a slice whose start depends on a dynamic size", dim)
    # True positions of the result read true positions of the source, as does the slice with true
    # sizes.
    made = (*dims[:axis], expected, *dims[axis + 1 :])
    return _moved(call, made, pads=not is_padded(dim) and not is_padded(expected))


@rule(aten.select.int, sizes=("index",))
def _select(call: Call) -> Any:
    writer, source = call.writer, call.get("self")
    dims = call.dims("self")
    axis, index = writer.axis(source, call.get("dim")), call.get("index")
    rest = (*dims[:axis], *dims[axis + 1 :])
    if index != 0:
        call.require_prefix("counts along joined dimensions", dims[axis])
    from_end = is_padded(dims[axis]) and index < 0
    if not isinstance(index, PaddedSize) and not from_end:
        return _moved(call, rest)
    if isinstance(index, PaddedSize):
        place = writer.count(index.true)
    else:
        place = writer.call(aten.add.Tensor, writer.count(dims[axis][0].true), int(index))
    picked = writer.call(aten.index_select.default, source, axis, place)
    return Written(writer.call(aten.squeeze.dim, picked, axis), rest)


@rule(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)
def _split(call: Call) -> Any:
    dims = call.dims("self")
    axis = call.writer.axis(call.get("self"), call.get("dim"))
    call.require_whole("is split along a dynamic size", dims[axis])
    removed = call.target is aten.unbind.int

    def result(made: fx.Node) -> tuple[Dims, ...]:
        if removed:
            return tuple((*dims[:axis], *dims[axis + 1 :]) for _ in made.meta["val"])
        return tuple(
            (*dims[:axis], whole(int(part.shape[axis])), *dims[axis + 1 :])
            for part in made.meta["val"]
        )

    return result


def _agreeing(call: Call, tensors: Sequence[fx.Node], without: int | None) -> None:
    """Checks that tensors have the same true positions except along one axis."""
    shapes = [call.writer.dims[source] for source in tensors]
    for shape in shapes:
        for axis, dim in enumerate(shape):
            if len(shape) != len(shapes[0]) or (axis != without and dim != shapes[0][axis]):
                raise call.refuse("operands are padded differently", dim, *shapes[0])


@rule(aten.cat.default)
def _cat(call: Call) -> Any:
    tensors = call.get("tensors")
    axis = call.writer.axis(tensors[0], call.get("dim"))
    _agreeing(call, tensors, axis)
    parts: list[Dim] = [call.writer.dims[source][axis] for source in tensors]
    call.require_whole("is followed by another part of a concatenation", *parts[:-1])
    if len(parts[-1]) > 1:
        call.require_whole("joined dimensions are concatenated", parts[-1])
    dims = call.writer.dims[tensors[0]]
    return (*dims[:axis], call.expected[axis], *dims[axis + 1 :])


@rule(aten.stack.default)
def _stack(call: Call) -> Any:
    tensors = call.get("tensors")
    _agreeing(call, tensors, None)
    dims = list(call.writer.dims[tensors[0]])
    dims.insert(call.get("dim") % (len(dims) + 1), whole(len(tensors)))
    return tuple(dims)


@rule(aten.flip.default, aten.roll.default)
def _turned(call: Call) -> Any:
    dims = call.dims("self")
    axes = call.get("dims") or range(len(dims))
    call.require_whole("elements move along a dynamic size", *(dims[axis] for axis in axes))
    return dims


@rule(aten.repeat.default)
def _repeat(call: Call) -> Any:
    dims, times = call.dims("self"), call.get("repeats")
    added = len(times) - len(dims)
    made: list[Dim] = [whole(count) for count in times[:added]]
    for dim, count in zip(dims, times[added:], strict=True):
        if count != 1:
            call.require_whole("is repeated along a dynamic size", dim)
        made.append(dim if count == 1 else call.expected[len(made)])
    return tuple(made)


@rule(aten.constant_pad_nd.default)
def _constant_pad(call: Call) -> Any:
    dims, pad = call.dims("self"), list(call.get("pad"))
    made = list(dims)
    source = call.get("self")
    for place in range(len(pad) // 2):
        axis = len(dims) - 1 - place
        before, after = pad[2 * place : 2 * place + 2]
        if before == after == 0:
            continue
        if len(dims[axis]) > 1 or min(before, after) < 0:
            call.require_whole("is padded or cut along joined dimensions", dims[axis])
        if after > 0:
            # The model's own padding begins after the true values.
            source = call.writer.masked(source, [axis], call.get("value") or 0)
        made[axis] = call.expected[axis]
    call.set("self", source)
    return tuple(made)
