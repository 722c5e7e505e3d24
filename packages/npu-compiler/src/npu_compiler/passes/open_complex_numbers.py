"""Opens calls on complex numbers into calls on pairs of real ones, which a program has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from npu_compiler.graph.complex_pairs import RULES, Pairs, StaysComplex
from npu_compiler.graph.nodes import add_call, is_static
from npu_compiler.passes.base import Facts, GraphPass
from npu_compiler.passes.inlining import inlined

__all__ = ["OpenComplexNumbers"]

aten = torch.ops.aten


@dataclass(frozen=True)
class OpenComplexNumbers(GraphPass):
    """Replaces calls that have a rule; between them and others stand views as complex numbers."""

    name = "open_complex_numbers"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        pairs: dict[fx.Node, fx.Node] = {}
        found = [node for node in graph.nodes if _has_rule(node) and not facts.is_kept(node)]
        count = sum(_open(graph, node, pairs) for node in found)
        if count:
            graph.eliminate_dead_code()
        return count


def _has_rule(node: fx.Node) -> bool:
    """Whether a call takes or gives complex64, and no wider numbers, in fixed sizes."""
    if node.op != "call_function" or node.target not in RULES:
        return False
    nodes = (node, *node.all_input_nodes)
    if not all(is_static(one) for one in nodes):
        return False
    dtypes = {one.meta["val"].dtype for one in nodes}
    return torch.complex64 in dtypes and not dtypes & {torch.complex128, torch.float64}


def _open(graph: fx.Graph, node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> bool:
    """Replaces a call; its complex result becomes a view of pairs, which later calls look through.

    Args:
        graph: holds the call.
        node: a call that has a rule.
        pairs: complex node -> the pairs it consists of; is added to.
    """
    sources = list(node.all_input_nodes)
    for source in sources:
        if _is_complex(source) and source not in pairs:
            pairs[source] = _as_pairs(graph, node, source)
    place_of = {source: place for place, source in enumerate(sources)}

    def on_pairs(*tensors: torch.Tensor) -> Any:
        def value(leaf: Any) -> Any:
            if not isinstance(leaf, fx.Node):
                return leaf
            tensor = tensors[place_of[leaf]]
            return Pairs(tensor) if _is_complex(leaf) else tensor

        args = pytree.tree_map(value, list(node.args))
        kwargs = pytree.tree_map(value, dict(node.kwargs))
        result = RULES[node.target](*args, **kwargs)
        return result.value if isinstance(result, Pairs) else result

    try:
        (made,) = inlined(graph, node, on_pairs, [pairs.get(source, source) for source in sources])
    except StaysComplex:
        return False
    if _is_complex(node):
        fresh = add_call(graph, node, aten.view_as_complex.default, (made,), origin=node)
        pairs[fresh] = made
        made = fresh
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return True


def _is_complex(node: fx.Node) -> bool:
    return bool(node.meta["val"].dtype.is_complex)


def _as_pairs(graph: fx.Graph, before: fx.Node, source: fx.Node) -> fx.Node:
    """A view of complex numbers that come from elsewhere, perhaps as conjugates."""
    plain = add_call(graph, before, aten.resolve_conj.default, (source,), origin=source)
    return add_call(graph, before, aten.view_as_real.default, (plain,), origin=source)
