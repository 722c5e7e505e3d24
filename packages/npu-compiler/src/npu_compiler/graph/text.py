"""Graphs as text: one line per node, the same in each process for the same graph.

The text is read by people in dumps and hashed by the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from npu_compiler.graph.calls import op_name
from npu_compiler.graph.origins import source_line

__all__ = ["graph_text"]

_SHORT = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip


def graph_text(graph: fx.Graph, *, sources: bool = False) -> str:
    """Returns a graph as text.

    A line reads `name: dtype[sizes] (strides) device = op(arguments)`; strides stand where elements
    do not lie in the order of the axes.

    Args:
        graph: with values in `meta["val"]`.
        sources: whether to add the Python line that a call comes from.
    """
    return "\n".join(_lines(graph, sources)) + "\n"


def _lines(graph: fx.Graph, sources: bool) -> Iterator[str]:
    for node in graph.nodes:
        if node.op == "output":
            yield f"return {_text(node.args[0])}"
            continue
        left = f"{node.name}: {_value(node.meta.get('val'))}"
        if node.op == "placeholder":
            yield f"{left} = input"
        elif node.op == "get_attr":
            yield f"{left} = constant {node.target}"
        else:
            arguments = [_text(value) for value in node.args]
            arguments += [f"{key}={_text(value)}" for key, value in node.kwargs.items()]
            line = f"{left} = {op_name(node.target)}({', '.join(arguments)})"
            place = source_line(node) if sources else None
            yield f"{line}  # {place}" if place else line


def _text(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_text(item) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(str(size) for size in tuple(value.shape))
        dtype = _SHORT.get(value.dtype, str(value.dtype).removeprefix("torch."))
        return f"{dtype}[{sizes}]{_strides(value)} {value.device.type}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_value(item) for item in value) + ")"
    return type(value).__name__ if isinstance(value, torch.SymInt) else str(value)


def _strides(value: torch.Tensor) -> str:
    if value.layout is not torch.strided:
        return f" {value.layout}"
    expected: Any = 1
    for size, stride in zip(reversed(tuple(value.shape)), reversed(value.stride()), strict=True):
        if str(size) != "1" and str(stride) != str(expected):
            return f" ({', '.join(str(stride) for stride in value.stride())})"
        expected = expected * size
    return ""
