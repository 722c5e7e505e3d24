"""Finds the smallest part of a wrong program that is wrong on its own."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence

import torch
from torch import fx

__all__ = ["cut", "wrong_part"]

# A search that takes longer is given up, and the whole program is the wrong part.
_TIME_LIMIT_S = 120.0


def wrong_part(
    module: fx.GraphModule, is_wrong: Callable[[fx.GraphModule, Sequence[fx.Node]], bool]
) -> list[fx.Node]:
    """Returns calls that are wrong together, as few as halving finds.

    First the shortest wrong beginning of the graph, then the shortest wrong end of that. A program
    whose parts are all right, since it is wrong only as a whole, is returned whole.

    Args:
        module: the graph of a program that is wrong.
        is_wrong: compiles a part of it, runs it on what torch computes for its inputs, and
            compares. It is given the part and the nodes of `module` that are its inputs.
    """
    calls = _units(module.graph)
    every = [node for unit in calls for node in unit]
    started = time.monotonic()

    def differs(first: int, last: int) -> bool:
        if time.monotonic() - started > _TIME_LIMIT_S:
            raise TimeoutError
        part = cut(module, [node for unit in calls[first:last] for node in unit])
        return part is not None and is_wrong(*part)

    try:
        if not differs(0, len(calls)):
            return every
        right, wrong = 0, len(calls)
        while wrong - right > 1:
            middle = (right + wrong) // 2
            right, wrong = (right, middle) if differs(0, middle) else (middle, wrong)
        end, first, beyond = wrong, 0, wrong
        while beyond - first > 1:
            middle = (first + beyond) // 2
            first, beyond = (middle, beyond) if differs(middle, end) else (first, middle)
    except TimeoutError:
        return every
    return [node for unit in calls[first:end] for node in unit]


def cut(
    module: fx.GraphModule, calls: Sequence[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node]] | None:
    """Returns some calls of a graph as a graph of its own, and the nodes that are its inputs.

    Its outputs are the tensors that others read. None when none are read.
    """
    members = set(calls)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inputs: list[fx.Node] = []
    for node in calls:
        for source in node.all_input_nodes:
            if source in members or source in copies:
                continue
            if source.op == "get_attr":
                copies[source] = graph.node_copy(source)
                continue
            copies[source] = graph.placeholder(source.name)
            copies[source].meta = dict(source.meta)
            inputs.append(source)
    for node in calls:
        copies[node] = graph.node_copy(node, lambda source: copies[source])
    outputs = [
        node
        for node in calls
        if isinstance(node.meta.get("val"), torch.Tensor)
        and any(user not in members for user in node.users)
    ]
    if not outputs:
        return None
    graph.output(tuple(copies[node] for node in outputs))
    # Placeholders first, as a graph wants them.
    head = next(iter(graph.nodes))
    for source in reversed(inputs):
        if copies[source] is not head:
            head.prepend(copies[source])
            head = copies[source]
    return fx.GraphModule(module, graph), inputs


def _units(graph: fx.Graph) -> list[list[fx.Node]]:
    """The calls of a graph, each with the picks from the tuple that it returns."""
    units: dict[fx.Node, list[fx.Node]] = {}
    owners: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        source = node.args[0] if node.args else None
        is_pick = node.target is operator.getitem and isinstance(source, fx.Node)
        owner = owners.get(source, node) if is_pick and isinstance(source, fx.Node) else node
        owners[node] = owner
        units.setdefault(owner, []).append(node)
    return list(units.values())
