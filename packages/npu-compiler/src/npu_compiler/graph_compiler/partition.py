"""Partitioning of a graph into programs and eager calls between them.

Each node has a level. A lowered node belongs to the program of its level; an eager node runs after
its level's program and before the next. This gives the fewest programs that eager nodes allow,
without cycles.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from npu_compiler.graph.nodes import is_effectful, is_mutation, is_symbolic, is_view
from npu_compiler.lowering.capability import INPUT_WRITE, is_compute, refusal
from npu_compiler.lowering.integer_widths import WIDE, integer_widths
from npu_compiler.options import CompilerConfig

__all__ = ["NOT_WORTH", "Plan", "Segment", "make_plan"]

NOT_WORTH = "no floating-point work next to it that justifies a program"


@dataclass(frozen=True)
class Segment:
    """Nodes that become one program, in the graph's order."""

    level: int
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Plan:
    """The partition of a graph."""

    segments: tuple[Segment, ...]  # the future programs, by ascending level
    eager: Mapping[fx.Node, str]  # node -> reason why it runs eagerly, without symbolic numbers
    levels: Mapping[fx.Node, int]  # level of each call


def make_plan(
    graph: fx.Graph,
    *,
    config: CompilerConfig,
    refused: Mapping[str, str] | None = None,
    seen: Mapping[str, int] | None = None,
) -> Plan:
    """Plans the programs of a functional graph of aten calls, with writes only at its end.

    `refused` has the reasons of nodes that could not be lowered, `seen` the bits of integer inputs
    in the first call (see npu_compiler.lowering.integer_widths).
    """
    reasons = dict(refused or {})
    static = {
        node: refusal(node, config, with_frontend=True)
        for node in graph.nodes
        if node.op == "call_function" and not is_symbolic(node)
    }
    if config.check_indices:
        eager = [node for node, reason in static.items() if reason or node.name in reasons]
        wide = integer_widths(graph, eager=eager, seen=seen).refused
        static.update((node, WIDE) for node in static if node.name in wide)
    while True:
        plan = _Levels(static, reasons).plan(graph)
        poor = [segment for segment in plan.segments if not any(map(is_compute, segment.nodes))]
        if not poor:
            return plan
        for segment in poor:
            reasons.update((node.name, NOT_WORTH) for node in segment.nodes)


class _Levels:
    """Gives each call of a graph its level, in the graph's order."""

    def __init__(self, static: Mapping[fx.Node, str | None], refused: Mapping[str, str]) -> None:
        self._static = static
        self._refused = refused
        self._levels: dict[fx.Node, int] = {}
        self._eager: dict[fx.Node, str] = {}
        self._members: dict[int, list[fx.Node]] = {}
        # Minimum level of later nodes: of all, of random draws, and of readers of an input after a
        # write to it.
        self._floor = 0
        self._draws = 0
        self._floors: dict[fx.Node, int] = {}
        self._last_reads: dict[fx.Node, int] = {}

    def plan(self, graph: fx.Graph) -> Plan:
        """Returns the plan of a graph."""
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._levels[node] = 0
            elif node.op == "call_function":
                self._add(node)
        segments = tuple(
            Segment(level, tuple(nodes)) for level, nodes in sorted(self._members.items())
        )
        return Plan(segments, self._eager, self._levels)

    def _add(self, node: fx.Node) -> None:
        sources = node.all_input_nodes
        owners = {_owner(source) for source in sources}
        floor = max([self._floor, *(self._floors.get(owner, 0) for owner in owners)])
        reason = None
        if not is_symbolic(node):
            reason = _reason(node, self._static, self._refused, self._eager)
        if reason is None:
            steps = (self._levels[source] + (source in self._eager) for source in sources)
            level = max([floor, *steps])
            if not is_symbolic(node):
                self._members.setdefault(level, []).append(node)
        else:
            self._eager[node] = reason
            level = max([floor, *(self._levels[source] for source in sources)])
            if is_effectful(node) and not is_mutation(node):
                level = self._draws = max(level, self._draws)
            if is_mutation(node):
                level = self._write(node, reason, level)
        self._levels[node] = level
        for owner in owners:
            self._last_reads[owner] = max(level, self._last_reads.get(owner, 0))

    def _write(self, node: fx.Node, reason: str, level: int) -> int:
        """Orders a write after earlier readers and before later ones."""
        if reason == INPUT_WRITE and isinstance(node.args[0], fx.Node):
            target = node.args[0]
            level = max(level, self._last_reads.get(target, 0))
            self._floors[target] = level + 1
        else:
            level = max(level, *self._levels.values())
            self._floor = level + 1
        return level


def _owner(node: fx.Node) -> fx.Node:
    """Returns the base of a chain of views."""
    while node.op == "call_function" and is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _reason(
    node: fx.Node,
    static: Mapping[fx.Node, str | None],
    refused: Mapping[str, str],
    eager: Mapping[fx.Node, str],
) -> str | None:
    if node.target is operator.getitem:
        # A result belongs to its call's segment.
        source = node.args[0]
        return eager.get(source) if isinstance(source, fx.Node) else None
    if node.name in refused:
        return refused[node.name]
    taken = (source for source in node.all_input_nodes if isinstance(source.meta.get("val"), tuple))
    if any(source.target is not operator.getitem for source in taken):
        return "takes a tuple of results"
    return static[node]
