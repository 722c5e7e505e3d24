"""Computes at compile time what depends on no input: ranges, masks, tables of positions.

Weights are not known here; what depends on them alone is folded by the device's compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from npu_compiler.graph.nodes import is_static, returned_memory
from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["FoldConstants"]

_PREFIX = "_folded_"


@dataclass(frozen=True)
class FoldConstants(GraphPass):
    """Replaces calls without inputs by their values.

    Attributes:
        max_bytes: larger values stay calls; a range of a million is cheaper made than kept.
    """

    max_bytes: int = 1 << 20

    name = "fold_constants"
    stage = "normalize"
    kinds = frozenset({"inference"})

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        owner = graph.owning_module
        if owner is None:
            return 0
        values: dict[fx.Node, torch.Tensor] = {}
        # A result is new memory in each call; a value that is kept is not.
        returned = returned_memory(graph)
        for node in graph.nodes:
            if node.op != "call_function" or node in returned:
                continue
            if self._can_fold(node, values, facts):
                values[node] = _evaluate(node, values)
        # What others than folded calls read; the rest goes with it.
        kept = [node for node in values if any(user not in values for user in node.users)]
        for node in kept:
            _replace(graph, owner, node, values[node])
        for node in reversed(list(graph.nodes)):
            if node in values and not node.users:
                graph.erase_node(node)
        return len(values)

    def _can_fold(self, node: fx.Node, values: dict[fx.Node, torch.Tensor], facts: Facts) -> bool:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or facts.is_kept(node):
            return False
        if target.namespace != "aten" or target._schema.is_mutable or node.is_impure():
            return False
        if torch.Tag.nondeterministic_seeded in target.tags or not is_static(node):
            return False
        if any(source not in values for source in node.all_input_nodes):
            return False
        meta = node.meta["val"]
        has_result = meta.numel() > 0 and meta.numel() * meta.element_size() <= self.max_bytes
        return has_result and not _is_undefined(target)


def _is_undefined(target: torch._ops.OpOverload) -> bool:
    """Whether an op's result is whatever its memory held."""
    return "empty" in target._schema.name


def _evaluate(node: fx.Node, values: dict[fx.Node, torch.Tensor]) -> torch.Tensor:
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
    args, kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs))
    with unset_fake_temporarily(), torch.no_grad():
        result: Any = node.target(*args, **kwargs)  # type: ignore[operator]
        # A view would hold the whole of what it looks at, and two values must share no memory.
        return result.contiguous().clone()  # type: ignore[no-any-return]


def _replace(graph: fx.Graph, owner: torch.nn.Module, node: fx.Node, value: torch.Tensor) -> None:
    name = next(f"{_PREFIX}{i}" for i in range(1 << 30) if not hasattr(owner, f"{_PREFIX}{i}"))
    meta = node.meta["val"]
    if meta.device.type != "cpu":
        with unset_fake_temporarily():
            value = value.to(meta.device)
    owner.register_buffer(name, value)
    with graph.inserting_before(node):
        fresh = graph.get_attr(name)
    fresh.meta = dict(node.meta)
    node.replace_all_uses_with(fresh)
