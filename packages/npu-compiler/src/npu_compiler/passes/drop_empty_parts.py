"""Removes tensors without elements from concatenations: an empty cache, an empty rest.

Programs cannot take such tensors, and without them the concatenation lowers as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["DropEmptyParts"]

_CONCATENATIONS = (torch.ops.aten.cat.default, torch.ops.aten.concat.default)


@dataclass(frozen=True)
class DropEmptyParts(GraphPass):
    """Concatenations without their empty parts."""

    name = "drop_empty_parts"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        count = 0
        for node in graph.nodes:
            if node.op != "call_function" or node.target not in _CONCATENATIONS:
                continue
            parts = list(cast(Sequence[fx.Node], node.args[0]))
            kept = [part for part in parts if not _is_empty(part)]
            dtype = node.meta["val"].dtype
            keeps_dtype = any(part.meta["val"].dtype == dtype for part in kept)
            if kept and len(kept) < len(parts) and keeps_dtype:
                node.args = (kept, *node.args[1:])
                count += 1
        if count:
            graph.eliminate_dead_code()
        return count


def _is_empty(part: fx.Node) -> bool:
    shape: tuple[Any, ...] = tuple(part.meta["val"].shape)
    return any(isinstance(size, int) and size == 0 for size in shape)
