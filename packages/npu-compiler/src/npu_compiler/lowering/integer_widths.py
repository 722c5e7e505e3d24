"""Integer widths: finds calls that are exact in 32 bits, and inputs that must fit them."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from npu_compiler.graph.casts_and_moves import CASTS, MOVES
from npu_compiler.graph.ranges import Interval, integer_ranges
from npu_compiler.lowering.context import NARROW_DTYPES
from npu_compiler.lowering.registry import bind_arguments
from npu_runtime.npu import as_cpu

__all__ = [
    "LARGEST_NUMBER",
    "WIDE",
    "Widths",
    "bits_seen",
    "integer_widths",
    "lone_numbers",
    "takes_narrow_integers",
]

# Arithmetic in these dtypes wraps around in torch, but not in a program, which computes in int32.
# Casts wrap around; see npu_compiler.lowering.context.

aten = torch.ops.aten

# These take a number besides the tensors, which must fit the dtype.
_WITH_NUMBERS = frozenset(
    {
        aten.constant_pad_nd.default,
        aten.where.self,
        aten.masked_fill.Scalar,
        aten.eq.Tensor,
        aten.eq.Scalar,
        aten.ne.Tensor,
        aten.ne.Scalar,
        aten.lt.Tensor,
        aten.lt.Scalar,
        aten.le.Tensor,
        aten.le.Scalar,
        aten.gt.Tensor,
        aten.gt.Scalar,
        aten.ge.Tensor,
        aten.ge.Scalar,
    }
)


def takes_narrow_integers(node: fx.Node) -> bool:
    """Whether a call in a program matches torch for int8, uint8 and int16 operands."""
    if node.target in CASTS or node.target in MOVES:
        return True
    if node.target not in _WITH_NUMBERS:
        return False
    dtypes = [dtype for dtype in _dtypes(node) if dtype in NARROW_DTYPES]
    bounds = [torch.iinfo(dtype) for dtype in dtypes]
    return all(
        isinstance(number, int) and limit.min <= number <= limit.max
        for number in _numbers(node)
        for limit in bounds
    )


def _dtypes(node: fx.Node) -> Iterator[torch.dtype]:
    for part in (*node.all_input_nodes, node):
        value = part.meta.get("val")
        if isinstance(value, torch.Tensor):
            yield value.dtype


def _numbers(node: fx.Node) -> Iterator[Any]:
    """Returns the numbers that a call compares with or fills in."""
    arguments = bind_arguments(node)
    for name in ("other", "value"):
        number = arguments.get(name)
        if number is not None and not isinstance(number, fx.Node):
            yield number


# OpenVINO's CPU plugin (2026.4.1) stores int64 in 32 bits. It computes most integer arithmetic
# (quotients, remainders, comparisons, sums, minima, choices) in float32, which is exact up to
# 2**24. So integers in arithmetic must be proved to fit 24 bits. Integers that are only moved, or
# only tested for their sign or for 0, must fit 32 bits. The proof assumes bounds of inputs, and
# each run checks them. Calls without a proof run eagerly. So do calls that read their results, if
# these are wide in the first call. A pure function: the intervals come from
# npu_compiler.graph.ranges, and npu_compiler.lowering.index_bounds records the checks of a run.

WIDE = "its integers may exceed the width of a program's integers"

_EXACT_BITS, _MOVED_BITS = 24, 31
# A quotient of numbers from 2**23 on may be rounded up to the next integer before truncation
# (measured with divisors of 3 digits, OpenVINO 2026.4.1).
_DIVIDED_BITS = 23
_DIVISIONS = frozenset(
    {
        aten.floor_divide.default,
        aten.div.Tensor_mode,
        aten.div.Scalar_mode,
        aten.remainder.Scalar,
        aten.remainder.Tensor,
        aten.fmod.Scalar,
        aten.fmod.Tensor,
    }
)
# Bounds of an input, widest first: ids and timestamps, and masks.
_BITS = (31, 24, 23, 20, 16, 12, 8, 4, 1)
_SPARE_BITS = 4
# Largest value that is assumed for a symbolic size.
LARGEST_NUMBER = 1 << 22
_WIDTHS = (torch.int64, torch.int32)
_CREATION = frozenset(
    {
        aten.full.default,
        aten.full_like.default,
        aten.new_full.default,
        aten.scalar_tensor.default,
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.embedding.default,
        aten._unsafe_index.Tensor,
    }
)
_EXACT = CASTS | MOVES | _CREATION
# Calls that use only the truth value or the sign of an integer.
_OF_SIGN = frozenset(
    {
        aten.logical_and.default,
        aten.logical_not.default,
        aten.logical_or.default,
        aten.logical_xor.default,
        aten.sign.default,
    }
)
# The same, if the other operand is the number 0.
_OF_ZERO = frozenset(
    {
        aten.eq.Scalar,
        aten.ge.Scalar,
        aten.gt.Scalar,
        aten.le.Scalar,
        aten.lt.Scalar,
        aten.ne.Scalar,
    }
)
# Calls that use the shape of their argument, and not its values.
_SHAPED = frozenset(
    {
        aten.ones_like.default,
        aten.zeros_like.default,
        aten.empty_like.default,
        aten.full_like.default,
        aten.new_ones.default,
        aten.new_zeros.default,
        aten.new_empty.default,
        aten.new_full.default,
    }
)
# Calls whose results exceed 32 bits even for few int8 or int16 numbers.
_PRODUCTS = frozenset({aten.cumprod.default, aten.prod.default, aten.prod.dim_int})
# Calls with indices -> their argument positions; see npu_compiler.lowering.index_bounds.
_INDEXED: dict[Any, int] = {
    aten.embedding.default: 1,
    aten.index.Tensor: 1,
    aten._unsafe_index.Tensor: 1,
    aten.index_put.default: 1,
    aten.take.default: 1,
    aten.put.default: 1,
    aten.one_hot.default: 0,
    aten.index_select.default: 2,
    aten.gather.default: 2,
    aten.scatter.src: 2,
    aten.scatter.value: 2,
    aten.scatter.reduce: 2,
    aten.scatter.value_reduce: 2,
    aten.scatter_add.default: 2,
    aten.scatter_reduce.two: 2,
    aten.index_add.default: 2,
    aten.index_copy.default: 2,
    aten.index_reduce.default: 2,
    aten.index_fill.int_Scalar: 2,
    aten.index_fill.int_Tensor: 2,
}


@dataclass(frozen=True)
class Widths:
    """Result of the proof.

    `refused` calls would differ from torch. `bits` bounds the values of an input, or of a call that
    runs eagerly, for one of its `readers`; each run checks it.
    """

    refused: frozenset[str] = frozenset()
    bits: Mapping[str, int] = field(default_factory=dict)
    readers: Mapping[str, fx.Node] = field(default_factory=dict)


def integer_widths(
    graph: fx.Graph,
    constants: Mapping[str, torch.Tensor] | None = None,
    *,
    eager: Collection[fx.Node] = (),
    seen: Mapping[str, int] | None = None,
) -> Widths:
    """Returns the calls of a graph that differ from torch on a device with narrower integers.

    Args:
        graph: aten calls with fake values in `meta["val"]`.
        constants: placeholder name -> frozen tensor.
        eager: calls that run eagerly for other reasons.
        seen: placeholder name -> bits of its values in the first call, a lower limit for its bound;
            see bits_seen.
    """
    return _Proof(graph, dict(constants or {}), frozenset(eager), dict(seen or {})).decide()


def bits_seen(placeholders: Sequence[fx.Node], values: Sequence[Any]) -> dict[str, int]:
    """Returns name -> number of bits of an input's integers, without the sign."""
    found = {}
    for node, value in zip(placeholders, values, strict=True):
        is_tensor = isinstance(value, torch.Tensor) and value.dtype in _WIDTHS
        if is_tensor and value.numel() and not value.is_meta:
            host = as_cpu(value) if value.device.type == "npu" else value
            least, most = torch.aminmax(host)
            found[node.name] = max(
                (-1 - int(least) if least < 0 else 0).bit_length(), max(int(most), 0).bit_length()
            )
    return found


def lone_numbers(placeholders: Sequence[fx.Node]) -> tuple[int, ...]:
    """Returns the positions of symbolic integers that are not the size of an input.

    Such a number is a Python integer of any size.
    """
    sizes: set[Any] = set()
    for node in placeholders:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            for size in (*value.shape, *value.stride(), value.storage_offset()):
                if isinstance(size, torch.SymInt):
                    sizes |= size.node.expr.free_symbols
    return tuple(
        position
        for position, node in enumerate(placeholders)
        if isinstance(value := node.meta.get("val"), torch.SymInt)
        and not value.node.expr.free_symbols <= sizes
    )


class _Proof:
    def __init__(
        self,
        graph: fx.Graph,
        constants: Mapping[str, torch.Tensor],
        eager: frozenset[fx.Node],
        seen: Mapping[str, int],
    ) -> None:
        self._graph = graph
        self._constants = constants
        self._eager = eager
        self._seen = seen
        self._calls = [
            node
            for node in graph.nodes
            if node.op == "call_function"
            and node.target is not operator.getitem
            and node not in eager
            and any(_looked_at(node))
        ]
        self._sources = self._find_sources()
        self._wide = self._find_wide()

    def decide(self) -> Widths:
        """Chooses the weakest bounds of inputs that prove as much as possible."""
        if not self._calls:
            return Widths()
        free = self._failing({})
        if not free:
            return Widths()
        sources = [source for source in self._sources if self._least(source) is not None]
        lowest = {source: self._least(source) or 0 for source in sources}
        hopeless = self._failing(lowest)
        bits = {source: max(_MOVED_BITS, lowest[source]) for source in sources}
        while lacking := self._failing(bits) - hopeless:
            further = [
                one for one in self._feeding(lacking) & bits.keys() if bits[one] > lowest[one]
            ]
            if not further:  # not computed only from integers
                hopeless |= lacking
            for source in further:
                bits[source] = next(b for b in _BITS if lowest[source] <= b < bits[source])
        readers: dict[str, fx.Node] = {}
        for node in sorted(free - hopeless, key=self._calls.index):
            for source in self._feeding({node}) & bits.keys():
                readers.setdefault(source.name, node)
        return Widths(
            refused=frozenset(node.name for node in hopeless),
            bits={source.name: bits[source] for source in bits if source.name in readers},
            readers=readers,
        )

    def _find_sources(self) -> list[fx.Node]:
        """Finds inputs of programs with unknown values."""
        return [
            node
            for node in self._graph.nodes
            if _is_wide(node)
            and (node in self._eager or node.op == "placeholder")
            and node.name not in self._constants
        ]

    def _find_wide(self) -> set[fx.Node]:
        """Finds eager calls on inputs with values that exceed 32 bits in the first call.

        Those of products of int8, uint8 or int16 always may.
        """
        found: set[fx.Node] = set()
        for source in self._sources:
            wide = self._seen.get(source.name, 0) > _MOVED_BITS
            if source.target in _PRODUCTS:
                wide |= _integer(source.all_input_nodes[0]) in NARROW_DTYPES
            if wide or (source in self._eager and found & self._feeding({source})):
                found.add(source)
        return found

    def _least(self, source: fx.Node) -> int | None:
        """Returns the tightest bound of an input in bits; None if its values exceed 32 bits.

        Masks stay masks; other values may be larger in later calls.
        """
        if source in self._wide:
            return None
        seen = self._seen.get(source.name, 0)
        wanted = seen if seen <= 1 or seen >= _MOVED_BITS else min(seen + _SPARE_BITS, _MOVED_BITS)
        return next((bits for bits in reversed(_BITS) if bits >= wanted), None)

    def _failing(self, bits: Mapping[fx.Node, int]) -> set[fx.Node]:
        known = integer_ranges(
            self._graph,
            self._constants,
            inputs={node.name: Interval(-(1 << b), (1 << b) - 1) for node, b in bits.items()},
            most_size=LARGEST_NUMBER,
            from_floats=True,
        )
        failing = set()
        for node in self._calls:
            is_kept = node.target in _EXACT or _reads_sign(node)
            computed = _DIVIDED_BITS if node.target in _DIVISIONS else _EXACT_BITS
            limit = 1 << (_MOVED_BITS if is_kept else computed)
            if not all(known[one].is_within(-limit, limit - 1) for one in _looked_at(node)):
                failing.add(node)
        return failing

    def _feeding(self, nodes: set[fx.Node]) -> set[fx.Node]:
        """Returns the sources from which nodes' integers are computed."""
        found, stack = set(), list(nodes)
        while stack:
            for one in stack.pop().all_input_nodes:
                # Elements of a call with several results, such as a split, are reached through the
                # call.
                is_tuple = isinstance(one.meta.get("val"), (tuple, list))
                if one not in found and (is_tuple or _integer(one) is not None):
                    found.add(one)
                    stack.append(one)
        return found.intersection(self._sources)


def _looked_at(node: fx.Node) -> Iterator[fx.Node]:
    """Yields a call's integer operands and results, except indices."""
    place = _INDEXED.get(node.target)
    indices = [] if place is None else pytree.tree_leaves(node.args[place])
    read = () if node.target in _SHAPED else node.all_input_nodes
    # The call has the position of its several results.
    parts = [user for user in node.users if user.target is operator.getitem]
    for one in (*read, node, *parts):
        if one not in indices and _is_wide(one):
            # Casts to int32, and moves of int32, cannot exceed 32 bits.
            is_narrow = node.target in _EXACT and one.meta["val"].dtype is torch.int32
            if not is_narrow:
                yield one


def _reads_sign(node: fx.Node) -> bool:
    if node.target in _OF_ZERO:
        other = node.args[1]
        return isinstance(other, (int, float)) and other == 0
    return node.target in _OF_SIGN


def _is_wide(node: fx.Node) -> bool:
    return _integer(node) in _WIDTHS


def _integer(node: fx.Node) -> torch.dtype | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point:
        return None
    return value.dtype
