"""Tells attention that its mask is causal, or hides nothing, where the mask is known.

The device's kernel then leaves the hidden half out instead of reading a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from npu_compiler.graph import whole_ops as capture  # noqa: F401  (defines npu_compiler::attention)
from npu_compiler.graph.nodes import is_call, is_static
from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["RecognizeCausalMask"]


@dataclass(frozen=True)
class RecognizeCausalMask(GraphPass):
    """A constant mask of flags that is lower triangular -> is_causal; all true -> no mask."""

    name = "recognize_causal_mask"
    stage = "fuse"
    kinds = frozenset({"inference"})

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        owner = graph.owning_module
        kinds: dict[str, str | None] = {}
        count = 0
        for node in graph.nodes:
            if not is_call(node, torch.ops.npu_compiler.attention.default):
                continue
            mask, is_causal = node.args[3], node.args[4]
            if is_causal or not isinstance(mask, fx.Node) or mask.op != "get_attr":
                continue
            name = str(mask.target)
            if name not in kinds:
                kinds[name] = _kind(getattr(owner, name, None))
            if kinds[name] is None or not is_static(node):
                continue
            node.update_arg(3, None)
            node.update_arg(4, kinds[name] == "causal")
            count += 1
        if count:
            graph.eliminate_dead_code()
        return count


def _kind(mask: object) -> str | None:
    """Says "causal", "full", or None of any other mask."""
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or mask.dim() < 2:
        return None
    with unset_fake_temporarily():
        here = mask.cpu()
        if bool(here.all()):
            return "full"
        rows, columns = here.shape[-2:]
        if rows != columns:
            return None
        lower = torch.ones(rows, columns, dtype=torch.bool).tril()
        return "causal" if torch.equal(here, lower.expand_as(here)) else None
