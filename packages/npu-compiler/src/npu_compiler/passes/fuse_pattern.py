"""The frame of fusions: find a pattern, put one call in its place if that gives the same tensor.

Each fusion has a file of its own.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import fx

from npu_compiler.graph.nodes import add_call, can_stand_for, returned_memory
from npu_compiler.passes.base import Facts, GraphPass
from npu_compiler.passes.pattern import Match, Pattern, find

__all__ = ["FusePattern", "Replacement"]


@dataclass(frozen=True)
class Replacement:
    """The call that stands for a match.

    Attributes:
        target: an overload.
        args: its arguments, nodes of the graph and numbers.
        kwargs: those that the schema has as keywords.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FusePattern(GraphPass):
    """A fusion: patterns, and what stands for a match of one.

    A match is left as it is when the replacement's dtype, sizes or strides are not the match's.
    """

    patterns: ClassVar[Sequence[Pattern]]
    stage = "fuse"

    @abc.abstractmethod
    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        """Returns what stands for a match, or None to leave it.

        Calls that it needs as arguments may be added before the match's root.
        """

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        returned = returned_memory(graph)
        count = 0
        # From the end, so that the widest match comes first.
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
    fresh = add_call(graph, root, chosen.target, chosen.args, origin=root, **chosen.kwargs)
    if not can_stand_for(fresh, root, returned):
        graph.erase_node(fresh)
        graph.eliminate_dead_code()  # what was added for its arguments
        return False
    root.replace_all_uses_with(fresh)
    return True
