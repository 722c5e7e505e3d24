"""How a graph with `add_custom` becomes an OpenVINO program.

npu_compiler imports this module by its entry point, when it lowers its first graph.
"""

from __future__ import annotations

from typing import Any

import openvino.opset15 as ops
import torch

import add_custom  # noqa: F401  (defines the op)
from npu_compiler import register_fx_node_converter

__all__: list[str] = []


# --8<-- [start:converter]
@register_fx_node_converter(torch.ops.add_custom.add_custom.default)
def convert(ctx: Any, x: torch.fx.Node, y: torch.fx.Node, alpha: float) -> Any:
    scaled = ops.multiply(ctx.get(y), ctx.number(alpha, ctx.out_dtype()))
    return ops.add(ctx.get(x), scaled)


# --8<-- [end:converter]
