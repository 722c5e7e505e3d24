"""Which nodes of a graph make a program together, and which run eagerly between programs.

Nodes get a level: a lowered node stands in the program of its level, an eager node runs after the
program of its own level and before the next. So programs are as few as eager nodes allow, and none
waits for itself. Cutting the graph along the plan is npu_compiler.assembly's work.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx

from npu_compiler.capability import (
    is_compute,
    is_effectful,
    is_mutation,
    is_symbolic,
    refusal,
)
from npu_compiler.options import CompilerConfig

__all__ = ["NOT_WORTH", "Plan", "Segment", "is_view", "make_plan"]

NOT_WORTH = "no floating point work beside it that would be worth a program"


@dataclass(frozen=True)
class Segment:
    """Nodes that become one program, in the graph's order."""

    level: int
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Plan:
    """How a graph is cut.

    Attributes:
        segments: the programs to be, by rising level.
        eager: node -> why it runs eagerly, without symbolic numbers.
        levels: level of each call.
    """

    segments: tuple[Segment, ...]
    eager: Mapping[fx.Node, str]
    levels: Mapping[fx.Node, int]


def make_plan(
    graph: fx.Graph, *, config: CompilerConfig, refused: Mapping[str, str] | None = None
) -> Plan:
    """Plans the programs of a graph.

    Args:
        graph: a functional graph of aten calls; writes to inputs may stand at its end.
        config: see CompilerConfig.
        refused: node name -> reason, for nodes that turned out not to be lowerable.
    """
    reasons = dict(refused or {})
    static = {
        node: refusal(node, config)
        for node in graph.nodes
        if node.op == "call_function" and not is_symbolic(node)
    }
    while True:
        plan = _level(graph, static, reasons)
        poor = [segment for segment in plan.segments if not any(map(is_compute, segment.nodes))]
        if not poor:
            return plan
        for segment in poor:
            reasons.update((node.name, NOT_WORTH) for node in segment.nodes)


def _level(
    graph: fx.Graph, static: Mapping[fx.Node, str | None], refused: Mapping[str, str]
) -> Plan:
    levels: dict[fx.Node, int] = {}
    eager: dict[fx.Node, str] = {}
    members: dict[int, list[fx.Node]] = {}
    floor = effects = 0
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            levels[node] = 0
        if node.op != "call_function":
            continue
        steps = [levels[source] + (source in eager) for source in node.all_input_nodes]
        if is_symbolic(node):
            levels[node] = max([floor, *steps])
            continue
        reason = _reason(node, static, refused, eager)
        if reason is None:
            levels[node] = max([floor, *steps])
            members.setdefault(levels[node], []).append(node)
            continue
        before = [floor, *(levels[source] for source in node.all_input_nodes)]
        eager[node] = reason
        level = max(before)
        if is_effectful(node):
            level = effects = max(level, effects)
        if is_mutation(node):
            level = max(level, *levels.values())
            floor = level + 1
        levels[node] = level
    segments = tuple(Segment(level, tuple(nodes)) for level, nodes in sorted(members.items()))
    return Plan(segments, eager, levels)


def _reason(
    node: fx.Node,
    static: Mapping[fx.Node, str | None],
    refused: Mapping[str, str],
    eager: Mapping[fx.Node, str],
) -> str | None:
    if node.target is operator.getitem:
        # A result stands where its call stands.
        source = node.args[0]
        return eager.get(source) if isinstance(source, fx.Node) else None
    if node.name in refused:
        return refused[node.name]
    taken = (source for source in node.all_input_nodes if isinstance(source.meta.get("val"), tuple))
    if any(source.target is not operator.getitem for source in taken):
        return "takes a tuple of results"
    return static[node]


def is_view(node: fx.Node) -> bool:
    """Whether a call returns a view of its first argument."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not is_mutation(node)
