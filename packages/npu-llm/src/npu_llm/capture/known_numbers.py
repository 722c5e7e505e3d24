"""Computes calls whose operands are numbers that the model's code made a tensor of.

Such a call gives the same number each time, whatever it is, so a program needs no counterpart of
it: a quantile of the normal distribution, for one (Gemma 3n).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

__all__ = ["compute_known_numbers"]


def compute_known_numbers(graph_module: fx.GraphModule) -> None:
    """Replaces calls on tensors of one number by what they give, in place.

    Args:
        graph_module: a traced step; its weights are no such numbers.
    """
    known: dict[fx.Node, Any] = {}
    for node in list(graph_module.graph.nodes):
        if node.op == "get_attr":
            held = getattr(graph_module, str(node.target), None)
            if _is_number(held):
                known[node] = held
        elif node.op == "call_function" and _is_computable(node, known):
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
            with torch.no_grad():
                value = node.target(*args, **kwargs)
            parts = value if isinstance(value, (list, tuple)) else [value]
            if all(_is_number(one) for one in parts):
                known[node] = value
    for place, (node, value) in enumerate(known.items()):
        is_read = any(user not in known for user in node.users)
        if node.op != "get_attr" and is_read and _is_number(value):
            name = f"known_number_{place}"
            graph_module.register_buffer(name, value, persistent=False)
            with graph_module.graph.inserting_before(node):
                constant = graph_module.graph.get_attr(name)
            constant.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(constant)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def _is_number(value: Any) -> bool:
    is_plain = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    return is_plain and value.dim() == 0


def _is_computable(node: fx.Node, known: dict[fx.Node, Any]) -> bool:
    """Whether all operands of a call are known, and it writes into none of them."""
    inputs = node.all_input_nodes
    if not inputs or any(one not in known for one in inputs):
        return False
    schema = getattr(node.target, "_schema", None)
    is_written = schema is not None and schema.is_mutable
    return not is_written or node.target is torch.ops.aten.detach_.default  # changes no number
