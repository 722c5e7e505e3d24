"""What the inputs of a graph from dynamo are called in the user's program: `layers.0.weight`.

Dynamo knows them as expressions, such as `L['self']._modules['layers']._parameters['weight']`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import fx

__all__ = ["keep_source_names", "kept_source_name", "source_names"]

_KEY = "npu_source_name"
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]")
_FIRST = re.compile(r"[LG]\['([^']+)'\]")


def source_names(graph_module: fx.GraphModule) -> tuple[str, ...]:
    """Names of a graph's inputs, in their order.

    Weights of the module that is compiled have their names in it; other values are called by the
    expression that the program has for them, and what has none by its node.
    """
    names = []
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            source = getattr(node.meta.get("grapharg"), "source", None)
            names.append(node.name if source is None else _readable(source.name))
    return tuple(names)


def keep_source_names(graph: fx.Graph, names: Sequence[str]) -> None:
    """Notes the names at the inputs of a graph that AOTAutograd made of dynamo's."""
    for node in graph.nodes:
        # Its description tells which of dynamo's inputs it is; copies are dropped on the way.
        index = getattr(node.meta.get("desc"), "idx", None)
        if node.op == "placeholder" and isinstance(index, int) and index < len(names):
            node.meta[_KEY] = names[index]


def kept_source_name(placeholder: fx.Node) -> str:
    """The name that was noted, else that of the node."""
    return str(placeholder.meta.get(_KEY, placeholder.name))


def _readable(source: str) -> str:
    members = _MEMBER.findall(source)
    root = _FIRST.match(source)
    if not members:
        return _FIRST.sub(r"\1", source)
    # The module that is compiled is `self` to its forward, and `module` to the one that calls it.
    is_own = root is not None and root[1] in ("self", "module", "fn")
    return ".".join(members if is_own or root is None else [root[1], *members])
