"""The arguments of an FX call under their schema names, with defaults filled in."""

from __future__ import annotations

import builtins
import keyword
from typing import Any

import torch
from torch import fx

__all__ = ["bind_arguments"]


def bind_arguments(node: fx.Node) -> dict[str, Any]:
    """Returns a call's arguments by name.

    For an overload the names and defaults are the schema's; a name that Python itself uses (input,
    min, from) gets an underscore behind it. For a Python function, such as
    operator.add, positional arguments are named arg0, arg1, ...
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        named = {f"arg{index}": value for index, value in enumerate(node.args)}
        return {**named, **node.kwargs}
    bound: dict[str, Any] = {}
    for index, argument in enumerate(node.target._schema.arguments):
        name = _own_name(argument.name)
        if index < len(node.args) and not argument.kwarg_only:
            bound[name] = node.args[index]
        elif argument.name in node.kwargs:
            bound[name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            bound[name] = argument.default_value
    return bound


def _own_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) or hasattr(builtins, name) else name
