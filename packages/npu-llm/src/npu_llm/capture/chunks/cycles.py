"""Finds which calls of a step must run token after token: those between a state and its next value.

A step of one token that is repeated depends on itself only through its states. Calls on a way from
a state back to that state's next value form a cycle; all other calls can be done for many tokens
at once, before or after it (the distribution of a loop over the strongly connected components of
its dependences: Allen and Kennedy, Automatic translation of FORTRAN programs to vector form, 1987).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from torch import fx

__all__ = ["in_order", "state_cycles"]

_Item = TypeVar("_Item")


def state_cycles(
    graph: fx.Graph, following: Mapping[fx.Node, fx.Node]
) -> dict[fx.Node, frozenset[fx.Node]]:
    """Returns the cycle of each call and state that lies on one.

    Args:
        graph: a functional step.
        following: the placeholder of each state, and the node that is its next value.
    """
    back: dict[fx.Node, list[fx.Node]] = {after: [] for after in following.values()}
    for state, after in following.items():
        back[after].append(state)
    finished: list[fx.Node] = []
    seen: set[fx.Node] = set()
    for root in graph.nodes:
        finished += _after_all(root, lambda node: [*node.users, *back.get(node, ())], seen)
    found: dict[fx.Node, frozenset[fx.Node]] = {}
    seen = set()

    def before(node: fx.Node) -> Sequence[fx.Node]:
        return [*node.all_input_nodes, *([following[node]] if node in following else ())]

    for root in reversed(finished):
        component = frozenset(_after_all(root, before, seen))
        if len(component) > 1:
            found |= dict.fromkeys(component, component)
    return found


def in_order(
    nodes: Iterable[fx.Node], cycles: Mapping[fx.Node, frozenset[fx.Node]]
) -> list[fx.Node | frozenset[fx.Node]]:
    """Returns calls and whole cycles so that each comes after what it reads.

    Args:
        nodes: a graph's nodes, each after what it reads.
        cycles: from `state_cycles`.
    """
    ordered: list[fx.Node | frozenset[fx.Node]] = []
    seen: set[fx.Node | frozenset[fx.Node]] = set()

    def before(unit: fx.Node | frozenset[fx.Node]) -> list[fx.Node | frozenset[fx.Node]]:
        members = [unit] if isinstance(unit, fx.Node) else sorted(unit)
        read = dict.fromkeys(one for member in members for one in member.all_input_nodes)
        return [cycles.get(one, one) for one in read if cycles.get(one, one) != unit]

    for node in nodes:
        ordered += _after_all(cycles.get(node, node), before, seen)
    return ordered


def _after_all(
    root: _Item, leads_to: Callable[[_Item], Iterable[_Item]], seen: set[_Item]
) -> list[_Item]:
    """Returns what a root reaches and was not seen before, each item after all that it leads to."""
    if root in seen:
        return []
    seen.add(root)
    ordered = []
    stack = [(root, iter(leads_to(root)))]
    while stack:
        item, left = stack[-1]
        following = next((one for one in left if one not in seen), None)
        if following is None:
            stack.pop()
            ordered.append(item)
        else:
            seen.add(following)
            stack.append((following, iter(leads_to(following))))
    return ordered
