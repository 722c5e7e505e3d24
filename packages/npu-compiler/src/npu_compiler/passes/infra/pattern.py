"""Patterns of calls, and the base of fusions, which replace a match by one call.

A pattern is built from `call`, `anything`, `number` and `same`; `find` matches it at one node. A
value inside a match that is used outside invalidates the match.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import fx

from npu_compiler.graph.nodes import add_call, can_stand_for, returned_memory, shares_memory
from npu_compiler.passes.infra.pass_base import Facts, GraphPass

__all__ = [
    "FusePattern",
    "Match",
    "Pattern",
    "Replacement",
    "anything",
    "call",
    "either",
    "find",
    "number",
    "optional",
]

_Found = tuple[dict[str, Any], tuple[fx.Node, ...]]


@dataclass(frozen=True)
class Match:
    """A match of a pattern: the call with its result, its named parts, and its calls."""

    root: fx.Node
    named: dict[str, Any]
    nodes: tuple[fx.Node, ...]

    def __getitem__(self, name: str) -> Any:
        return self.named[name]


class Pattern:
    """One position of a pattern."""

    def matches(self, value: Any, named: dict[str, Any]) -> Iterator[_Found]:
        """Yields each possible match: the bound names, and the matched calls."""
        raise NotImplementedError


def _bind(named: dict[str, Any], name: str | None, value: Any) -> dict[str, Any] | None:
    if name is None:
        return named
    if name in named:
        return named if _is_same(named[name], value) else None
    return {**named, name: value}


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, fx.Node) or isinstance(right, fx.Node):
        return left is right
    return bool(left == right)


@dataclass(frozen=True)
class _Anything(Pattern):
    name: str | None
    check: Callable[[Any], bool] | None

    def matches(self, value: Any, named: dict[str, Any]) -> Iterator[_Found]:
        if self.check is not None and not self.check(value):
            return
        bound = _bind(named, self.name, value)
        if bound is not None:
            yield bound, ()


@dataclass(frozen=True)
class _Call(Pattern):
    targets: tuple[Any, ...]
    args: tuple[Any, ...]
    commutes: bool
    keywords: bool
    name: str | None

    def matches(self, value: Any, named: dict[str, Any]) -> Iterator[_Found]:
        if not isinstance(value, fx.Node) or value.op != "call_function":
            return
        if value.target not in self.targets or not (self.keywords or _are_plain(value)):
            return
        bound = _bind(named, self.name, value)
        if bound is None:
            return
        orders: list[Sequence[Any]] = [value.args]
        if self.commutes and len(value.args) == 2:
            orders.append(value.args[::-1])
        for given in orders:
            if len(given) < len(self.args):
                return
            for found, nodes in _match_all(self.args, given, bound):
                yield found, (value, *nodes)


def _are_plain(node: fx.Node) -> bool:
    """Whether keyword arguments only repeat defaults."""
    return all(given is None or given is False for given in node.kwargs.values())


def _match_all(
    patterns: Sequence[Any], given: Sequence[Any], named: dict[str, Any]
) -> Iterator[_Found]:
    if not patterns:
        yield named, ()
        return
    for bound, nodes in _match_one(patterns[0], given[0], named):
        for rest, more in _match_all(patterns[1:], given[1:], bound):
            yield rest, (*nodes, *more)


def _match_one(pattern: Any, value: Any, named: dict[str, Any]) -> Iterator[_Found]:
    if isinstance(pattern, Pattern):
        yield from pattern.matches(value, named)
    elif isinstance(pattern, list):
        if isinstance(value, (list, tuple)) and len(value) == len(pattern):
            yield from _match_all(pattern, list(value), named)
    elif not isinstance(value, fx.Node) and value == pattern:
        yield named, ()


@dataclass(frozen=True)
class _Either(Pattern):
    options: tuple[Pattern, ...] = field(default_factory=tuple)

    def matches(self, value: Any, named: dict[str, Any]) -> Iterator[_Found]:
        for option in self.options:
            yield from option.matches(value, named)


def anything(name: str | None = None, *, check: Callable[[Any], bool] | None = None) -> Pattern:
    """Matches any value that passes the check; a name binds one value in the whole pattern."""
    return _Anything(name, check)


def number(name: str | None = None) -> Pattern:
    """Matches a plain number."""
    return _Anything(name, lambda value: isinstance(value, (int, float)))


def call(
    target: Any,
    *args: Any,
    commutes: bool = False,
    keywords: bool = False,
    name: str | None = None,
) -> Pattern:
    """Matches a call of an overload, or of one of a tuple, whose first arguments match.

    `commutes` allows either order of two arguments. `keywords` allows keyword arguments, which the
    pass must check.
    """
    targets = target if isinstance(target, tuple) else (target,)
    return _Call(targets, args, commutes, keywords, name)


def either(*options: Pattern) -> Pattern:
    """Matches the first possible of several patterns."""
    return _Either(options)


def optional(target: Any, inner: Pattern) -> Pattern:
    """Matches `inner`, with or without a call of `target` (a cast or a copy) around it."""
    return _Either((call(target, inner, keywords=True), inner))


def find(
    pattern: Pattern, node: fx.Node, *, is_kept: Callable[[fx.Node], bool] = lambda _: False
) -> Match | None:
    """Returns the match of a pattern at a node, or None.

    A match is invalid if a call inside it, other than the root, is used outside, or if one of its
    calls is kept. Views cost nothing, so they may be used outside.
    """
    for named, nodes in pattern.matches(node, {}):
        inside = set(nodes)
        if any(not (shares_memory(part) or set(part.users) <= inside) for part in inside - {node}):
            continue
        if any(map(is_kept, inside)):
            continue
        return Match(node, named, tuple(dict.fromkeys(nodes)))
    return None


@dataclass(frozen=True)
class Replacement:
    """The call that replaces a match.

    Attributes:
        target: an overload.
        args, kwargs: its arguments.
        origin: call of the match with the module and source line to inherit; None for the root.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    origin: fx.Node | None = None


@dataclass(frozen=True)
class FusePattern(GraphPass):
    """A fusion: patterns, and the replacement of a match.

    A match is kept if the dtype, sizes or strides of the replacement differ.
    """

    patterns: ClassVar[Sequence[Pattern]]
    stage = "fuse"

    @abc.abstractmethod
    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        """Returns the replacement of a match, or None to keep it.

        Calls for its arguments may be added before the match's root.
        """

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        returned = returned_memory(graph)
        count = 0
        # From the end, so that the widest match is first.
        for node in reversed(list(graph.nodes)):
            if node.op != "call_function" or node._erased:
                continue
            count += self._fuse(graph, node, facts, returned)
        if count:
            graph.eliminate_dead_code()
        return count

    def _fuse(self, graph: fx.Graph, node: fx.Node, facts: Facts, returned: set[fx.Node]) -> bool:
        for pattern in self.patterns:
            match = find(pattern, node, is_kept=facts.is_kept)
            if match is None:
                continue
            chosen = self.replacement(match, facts)
            if chosen is not None and _put(graph, match, chosen, returned):
                return True
        return False


def _put(graph: fx.Graph, match: Match, chosen: Replacement, returned: set[fx.Node]) -> bool:
    root = match.root
    origin = root if chosen.origin is None else chosen.origin
    fresh = add_call(graph, root, chosen.target, chosen.args, origin=origin, **chosen.kwargs)
    if not can_stand_for(fresh, root, returned):
        graph.erase_node(fresh)
        graph.eliminate_dead_code()  # calls added for its arguments
        return False
    root.replace_all_uses_with(fresh)
    return True
