"""The arguments of an FX call under their schema names, with defaults filled in.

What an argument means is the converter's business; see npu_compiler.lowering.converters.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import fx

__all__ = ["bind_arguments"]


def bind_arguments(node: fx.Node) -> dict[str, Any]:
    """Returns a call's arguments by name.

    For an overload the names and defaults are the schema's. For a Python function, such as
    operator.add, positional arguments are named arg0, arg1, ...
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        named = {f"arg{index}": value for index, value in enumerate(node.args)}
        return {**named, **node.kwargs}
    bound: dict[str, Any] = {}
    for index, argument in enumerate(node.target._schema.arguments):
        if index < len(node.args) and not argument.kwarg_only:
            bound[argument.name] = node.args[index]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            bound[argument.name] = argument.default_value
        else:
            bound[argument.name] = inspect.Parameter.empty
    return bound
