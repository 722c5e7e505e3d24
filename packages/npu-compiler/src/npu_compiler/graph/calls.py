"""What one call of a graph is: its op's name, whether it is a view, writes, or has an effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import fx

__all__ = [
    "is_effectful",
    "is_mutation",
    "is_symbolic",
    "is_view",
    "op_name",
    "view_chain",
    "written_inputs",
]


def op_name(key: Any) -> str:
    """Returns the name that messages, friendly names and reports use, such as aten.add.Tensor."""
    if isinstance(key, (str, torch._ops.OpOverload)):
        return str(key)
    name = getattr(key, "__name__", None) or type(key).__name__
    module = getattr(key, "__module__", "") or ""
    return f"{module.lstrip('_')}.{name}" if module else name


def is_symbolic(node: fx.Node) -> bool:
    """Whether a node stands for a symbolic number and not for a tensor."""
    if node.target is torch.ops.aten._local_scalar_dense.default:
        # Reads a tensor's content, so it is a call like others.
        return False
    value = node.meta.get("val")
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def is_mutation(node: fx.Node) -> bool:
    """Whether a call writes to one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_effectful(node: fx.Node) -> bool:
    """Whether the order of a call among others of its kind matters (random numbers, asserts)."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.is_impure()
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return not _has_no_dropout(node)
    return node.is_impure()


def _has_no_dropout(node: fx.Node) -> bool:
    """Whether a call, as of attention, draws numbers for dropout alone, and is asked for none."""
    for index, argument in enumerate(cast(Any, node.target)._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[index] if index < len(node.args) else node.kwargs.get("dropout_p")
            return given is None or (isinstance(given, float) and given == 0.0)
    return False


def is_view(node: fx.Node) -> bool:
    """Whether a call returns a view of its first argument."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not is_mutation(node)


def view_chain(node: fx.Node) -> list[fx.Node]:
    """A node, what it is a view of, what that is a view of, ... down to what is not a view."""
    chain = [node]
    while chain[-1].op == "call_function" and is_view(chain[-1]):
        source = chain[-1].args[0]
        if not isinstance(source, fx.Node):
            break
        chain.append(source)
    return chain


def written_inputs(node: fx.Node) -> Iterator[fx.Node]:
    """Yields the placeholders that a call writes to, directly or through views."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        while isinstance(given, fx.Node) and given.op == "call_function" and is_view(given):
            given = cast(Any, given.args[0])
        if isinstance(given, fx.Node) and given.op == "placeholder":
            yield given
