"""Which calls of a graph are to stay in float32, by the module that they stand in."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import fx

from npu_compiler.graph.origins import module_path

__all__ = ["is_kept_float32", "keep_name", "mark_kept_float32"]

_KEY = "npu_keep_float32"


def keep_name(node: fx.Node) -> str:
    """The name by which a call is kept: the innermost module's path, else the node's own name."""
    return module_path(node) or node.name


def mark_kept_float32(graph: fx.Graph, patterns: Sequence[str]) -> frozenset[str]:
    """Marks the calls that the patterns name; returns the patterns that named any.

    Args:
        graph: as captured, before any pass.
        patterns: as of CompilerConfig.keep_float32.
    """
    found = set()
    for node in graph.nodes if patterns else ():
        if node.op == "call_function" and node.target is not operator.getitem:
            name = keep_name(node)
            meant = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
            found.update(meant)
            if meant:
                node.meta[_KEY] = True
    return frozenset(found)


def is_kept_float32(node: fx.Node) -> bool:
    """Whether mark_kept_float32 has marked a call."""
    return bool(node.meta.get(_KEY))
