"""Finds the indices of a graph that each run must check.

torch raises for an index out of range; on a device the result is undefined. An index that is proved
to be in range (npu_compiler.graph.ranges) needs no check. An index in an input is checked there.
Any other index becomes an additional int32 output. npu_runtime checks them in each run.

For an index out of range, OpenVINO's CPU plugin (2026.4.1) returns zeros (Gather), raises
(GatherElements), or accesses memory out of bounds (GatherND, all scatters), which may crash the
process. Indices of the last kind are clamped into range before use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.graph.nodes import op_name
from npu_compiler.graph.origins import python_line
from npu_compiler.graph.ranges import Interval, integer_ranges, interval_of_size
from npu_compiler.lowering.context import Context, same_size

__all__ = ["IndexChecks", "IndexRecord", "unproven_calls"]

aten = torch.ops.aten

_HARMLESS, _RAISES, _HARMFUL = "harmless", "raises", "harmful"

# By op: the plugin's effect for an index out of range, and whether torch counts negative indices
# from the end. All take `self, dim, index`.
_ALONG_DIM = {
    aten.index_select.default: (_HARMLESS, False),
    aten.gather.default: (_RAISES, False),
    aten.scatter.src: (_HARMFUL, False),
    aten.scatter.value: (_HARMFUL, False),
    aten.scatter.reduce: (_HARMFUL, False),
    aten.scatter.value_reduce: (_HARMFUL, False),
    aten.scatter_add.default: (_HARMFUL, False),
    aten.scatter_reduce.two: (_HARMFUL, False),
    aten.index_add.default: (_HARMFUL, False),
    aten.index_copy.default: (_HARMFUL, False),
    aten.index_reduce.default: (_HARMFUL, False),
    aten.index_fill.int_Scalar: (_HARMFUL, True),
    aten.index_fill.int_Tensor: (_HARMFUL, True),
}
_BY_TENSORS = (aten.index.Tensor, aten.index_put.default)
_FLAT = (aten.take.default, aten.put.default)
_OTHERS = (aten.embedding.default, aten.one_hot.default)

# Calls whose result has exactly the values of the first argument.
_SAME_VALUES = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default,
    aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.clone.default,
    aten.alias.default, aten.detach.default, aten.flip.default, aten.roll.default,
    aten.repeat.default, aten._to_copy.default, torch.ops.prims.convert_element_type.default,
}  # fmt: skip

_BITS = {torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}


@dataclass(frozen=True)
class IndexRecord:
    """One check as stored with a program, JSON-compatible; see npu_runtime.IndexCheck."""

    node: str  # FX node that uses the index
    op: str  # its op
    line: str | None  # Python file:line outside of torch; None if unknown
    # Name of an input from which the index is computed; its values must fit the 32 bits of a
    # program's integers. None if the input is the index.
    source: str | None
    port: int  # this and the following are fields of npu_runtime.IndexCheck
    is_output: bool = False
    size: int | None = None
    size_port: int = 0
    size_dim: int | None = None
    is_size_output: bool = False
    wraps: bool = False


@dataclass(frozen=True)
class _Use:
    """An index argument of a call, and the size of the indexed axis."""

    index: fx.Node
    size: int | torch.SymInt
    source: fx.Node | None
    dim: int | None
    wraps: bool
    harm: str


def unproven_calls(graph: fx.Graph) -> frozenset[fx.Node]:
    """Returns the calls that could raise in torch because of an index."""
    calls = [node for node in graph.nodes if _has_indices(node)]
    ranges = integer_ranges(graph) if calls else {}
    return frozenset(
        node for node in calls if not all(_is_proven(ranges[use.index], use) for use in _uses(node))
    )


def _has_indices(node: fx.Node) -> bool:
    target = node.target
    return target in _ALONG_DIM or target in _BY_TENSORS or target in _FLAT or target in _OTHERS


def _uses(node: fx.Node) -> Iterator[_Use]:
    args: Any = node.args
    target: Any = node.target
    if target in _ALONG_DIM:
        harm, wraps = _ALONG_DIM[target]
        yield _along(args[0], args[1], args[2], wraps=wraps, harm=harm)
    elif target in _BY_TENSORS:
        given = [(axis, index) for axis, index in enumerate(args[1]) if index is not None]
        is_gather = target is aten.index.Tensor and len(given) == 1
        for axis, index in given:
            harm = _HARMLESS if is_gather else _HARMFUL
            if index.meta["val"].dtype not in (torch.bool, torch.uint8):
                yield _along(args[0], axis, index, wraps=True, harm=harm)
    elif target in _FLAT:
        harm = _RAISES if target is aten.take.default else _HARMFUL
        yield _Use(args[1], args[0].meta["val"].numel(), None, None, True, harm)
    elif target is aten.embedding.default:
        yield _along(args[0], 0, args[1], wraps=False, harm=_HARMLESS)
    elif target is aten.one_hot.default:
        yield _Use(args[0], args[1], None, None, False, _HARMLESS)


def _along(source: fx.Node, dim: int, index: fx.Node, *, wraps: bool, harm: str) -> _Use:
    shape: tuple[Any, ...] = tuple(source.meta["val"].shape)
    size = shape[dim] if shape else 1
    return _Use(index, size, source, dim % max(len(shape), 1), wraps, harm)


@dataclass
class _Outputs:
    """Additional outputs of a program, for checks."""

    first: int = 0
    values: list[ov.Output] = field(default_factory=list)
    known: dict[Any, int] = field(default_factory=dict)

    def port(self, key: Any, value: ov.Output) -> int:
        """Returns the index of the output for a value, created once per key."""
        if key not in self.known:
            self.known[key] = len(self.values)
            if value.get_element_type() != ov.Type.i32:
                value = ops.convert(value, ov.Type.i32).output(0)
            self.values.append(value)
        return self.known[key]


class IndexChecks:
    """Collects the checks of one lowering."""

    def __init__(self, graph: fx.Graph, constants: Mapping[str, torch.Tensor]) -> None:
        """Takes the graph to lower, and the tensors of its frozen placeholders."""
        self._ranges: tuple[dict[fx.Node, Interval], ...] = ()
        if any(_has_indices(node) for node in graph.nodes):
            # The index must be in range in torch's arithmetic and in that of a 32-bit device.
            self._ranges = tuple(
                integer_ranges(graph, constants, int64_bits=bits) for bits in (64, 32)
            )
        self._inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self._frozen = constants
        self._outputs = _Outputs()
        self._found: dict[Any, tuple[IndexRecord, fx.Node]] = {}

    def guard(self, ctx: Context, node: fx.Node) -> dict[fx.Node, ov.Output]:
        """Records the checks of a call; returns its current indices, or raises Refused."""
        replaced: dict[fx.Node, ov.Output] = {}
        for use in _uses(node) if self._ranges else ():
            if any(not _is_proven(ranges[use.index], use) for ranges in self._ranges):
                is_input = self._note(ctx, node, use)
                if use.harm == _HARMFUL or (use.harm == _RAISES and not is_input):
                    if use.index is use.source:
                        ctx.refuse("a tensor that indexes itself")
                    replaced[use.index] = _clamped(ctx, use)
        return replaced

    def bound_inputs(self, bits: Mapping[str, int], readers: Mapping[str, fx.Node]) -> None:
        """Records bounds of inputs for a device with narrower integers; see integer_widths."""
        inputs = {node.name: node for node in self._inputs}
        for name, reader in readers.items():
            if bits[name] < _BITS[inputs[name].meta["val"].dtype] - 1:
                size = {"size": 1 << bits[name]}
                self._add(reader, inputs[name], size, wraps=True, source=name)

    def _note(self, ctx: Context, node: fx.Node, use: _Use) -> bool:
        """Records a check; returns whether an input holds the index."""
        size = self._size(ctx, use)
        held = self._held(use.index)
        if held is not None:
            self._add(node, held, size, wraps=use.wraps)
            return True
        port = self._outputs.port(use.index, ctx.get(use.index))
        self._add(node, None, size, wraps=use.wraps, port=port, is_output=True)
        return False

    def _add(
        self,
        node: fx.Node,
        held: fx.Node | None,
        size: dict[str, Any],
        *,
        wraps: bool,
        port: int = 0,
        is_output: bool = False,
        source: str | None = None,
    ) -> None:
        key = (held, port, is_output, tuple(sorted(size.items())), wraps)
        record = IndexRecord(
            node=node.name,
            op=op_name(node.target),
            line=python_line(node) or None,
            source=source,
            port=port,
            is_output=is_output,
            wraps=wraps,
            **size,
        )
        self._found.setdefault(key, (record, held or node))

    def _held(self, index: fx.Node) -> fx.Node | None:
        """Returns the input with exactly the values of an index."""
        while index.op == "call_function" and index.target in _SAME_VALUES:
            source: Any = index.args[0]
            before, after = (_BITS.get(one.meta["val"].dtype) for one in (source, index))
            if before is None or after is None or after < before:
                return None
            index = source
        is_input = index.op == "placeholder" and index.name not in self._frozen
        return index if is_input and index.meta["val"].dtype in _BITS else None

    def _size(self, ctx: Context, use: _Use) -> dict[str, Any]:
        """Returns the source of the indexed size; a port is an input's position in the graph."""
        known = interval_of_size(use.size)
        if known.low == known.high:
            return {"size": known.low}
        for place, node in enumerate(self._inputs):
            value = node.meta.get("val")
            if node.name in self._frozen or not isinstance(value, torch.Tensor):
                continue
            for dim, size in enumerate(tuple(value.shape)):
                if same_size(size, use.size):
                    return {"size_port": place, "size_dim": dim}
        if use.source is None or use.dim is None:
            ctx.refuse("an index into a dynamic number of elements")
        port = self._outputs.port((use.source, use.dim), ctx.size(use.source, use.dim))
        return {"size_port": port, "is_size_output": True}

    def finish(
        self, input_names: list[str], orders: Mapping[str, Any], output_count: int
    ) -> tuple[list[ov.Output], tuple[IndexRecord, ...]]:
        """Returns the model's additional outputs, and the checks with their ports.

        Args:
            input_names: of the model's inputs.
            orders: name -> axis order of an input.
            output_count: number of the model's outputs without these.
        """
        ports = {name: index for index, name in enumerate(input_names)}
        records = []
        for record, held in self._found.values():
            port = record.port + output_count if record.is_output else ports[held.name]
            size_port, size_dim = record.size_port, record.size_dim
            if record.is_size_output:
                size_port += output_count
            elif size_dim is not None:
                name = self._inputs[size_port].name
                size_port = ports[name]
                size_dim = list(orders.get(name, range(size_dim + 1))).index(size_dim)
            records.append(
                dataclasses.replace(record, port=port, size_port=size_port, size_dim=size_dim)
            )
        return self._outputs.values, tuple(records)


def _is_proven(interval: Interval, use: _Use) -> bool:
    low = -interval_of_size(use.size).low if use.wraps else 0
    return interval.low >= low and interval.is_below(use.size)


def _clamped(ctx: Context, use: _Use) -> ov.Output:
    """Clamps an index into range."""
    index = ctx.get(use.index)
    dtype = use.index.meta["val"].dtype
    least = interval_of_size(use.size)
    if least.low == least.high:
        low = ctx.number(-least.low if use.wraps else 0, dtype)
        high = ctx.number(least.low - 1, dtype)
    else:
        assert use.source is not None
        assert use.dim is not None
        size = ctx.convert(ctx.reshape(ctx.size(use.source, use.dim), []), dtype)
        high = ops.subtract(size, ctx.number(1, dtype)).output(0)
        zero = ctx.number(0, dtype)
        low = ops.subtract(zero, size).output(0) if use.wraps else zero
    return ops.minimum(ops.maximum(index, low), high).output(0)
