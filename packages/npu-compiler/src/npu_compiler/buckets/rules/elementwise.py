"""Rules of ops that compute each element from its own place, and of tensors made from sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from npu_compiler.buckets.call import Call, Rule, rule
from npu_compiler.buckets.factors import Dim, Dims

__all__ = ["POINTWISE", "broadcast", "keep_ranges"]

aten = torch.ops.aten

# Integer division by what happens to stand in padding may end the process.
_DIVISIONS = frozenset({"div", "floor_divide", "remainder", "fmod"})


def broadcast(call: Call, *shapes: Dims) -> Dims:
    """Returns the dims of a result of several tensors.

    Raises:
        CannotPad: two dimensions that meet hold their true values in different places.
    """
    rank = max(map(len, shapes))
    made: list[Dim] = []
    for axis in range(-rank, 0):
        meeting = [shape[axis] for shape in shapes if len(shape) >= -axis]
        wide = [dim for dim in meeting if dim]
        if any(dim != wide[0] for dim in wide):
            raise call.refuse("differently padded tensors meet", *wide)
        made.append(wide[0] if wide else ())
    return tuple(made)


def keep_ranges(call: Call, source: fx.Node, *, pads: bool = True) -> Any:
    """Notes that a result holds the elements of a source; used by rules that return a function."""
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
    """Bounds of an integer tensor plus a number."""
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
