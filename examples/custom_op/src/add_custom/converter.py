"""Converter from a graph with `add_custom` or `write_ring` to an OpenVINO program.

npu_compiler imports this module by its entry point, when it lowers its first graph.
"""

from __future__ import annotations

from typing import Any

import openvino.opset15 as ops
import torch

import add_custom  # noqa: F401  (defines the ops)
from npu_compiler import register_fx_node_converter

__all__ = ["convert_ring"]


# --8<-- [start:converter]
@register_fx_node_converter(torch.ops.add_custom.add_custom.default)
def convert(ctx: Any, x: torch.fx.Node, y: torch.fx.Node, alpha: float) -> Any:
    scaled = ops.multiply(ctx.get(y), ctx.number(alpha, ctx.out_dtype()))
    return ops.add(ctx.get(x), scaled)


# --8<-- [end:converter]


# --8<-- [start:ring_converter]
@register_fx_node_converter(torch.ops.add_custom.write_ring.default)
def convert_ring(ctx: Any, cache: torch.fx.Node, rows: torch.fx.Node, start: torch.fx.Node) -> Any:
    """Returns the new content of the cache: the op returns nothing before it."""
    (slots, _), (count, _) = ctx.sizes(cache), ctx.sizes(rows)
    if slots is None or count is None:
        ctx.refuse("the numbers of slots and rows must be static")
    size = ctx.integers([slots])
    first = ops.floor_mod(ctx.get(start), size)
    at = ops.floor_mod(ops.add(first, ctx.integers(range(count))), size)
    return ops.scatter_update(ctx.get(cache), at, ctx.get(rows), ctx.number(0, torch.int64))


# --8<-- [end:ring_converter]
