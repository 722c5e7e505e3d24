"""Gives calls that write to an argument their memory back, such as a KV cache.

AOTAutograd makes such a call functional: it runs on clones, and a copy at the graph's end carries
the clones into the inputs. Where the former content is no longer needed, the call writes to the
input itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2

from npu_compiler.graph.calls import is_view
from npu_compiler.passes.base import Facts, GraphPass

__all__ = ["WriteInPlace", "written_arguments"]

_COPY = torch.ops.aten.copy_.default
_AS_STRIDED = torch.ops.aten.as_strided.default


@dataclass(frozen=True)
class WriteInPlace(GraphPass):
    """Replaces functional forms of writing calls by the calls, where that changes no result.

    That is so where the written memory is inputs of the graph that are not read in their former
    state afterwards. Any other keeps its clones.
    """

    name = "write_in_place"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        return sum(
            _replace(graph, node)
            for node in list(graph.nodes)
            if node.op == "call_function" and node.target is auto_functionalized_v2
        )


def _replace(graph: fx.Graph, node: fx.Node) -> bool:
    op = cast(torch._ops.OpOverload, node.args[0])
    bases = list(cast(Any, node.kwargs["_all_bases"]))
    results = len(op._schema.returns)
    first_base = max(results, 1)  # an op that returns nothing has None in the first place
    after = _nodes_after(graph, node)
    if not all(_is_free(base, node, after) for base in bases):
        return False
    plans = written_arguments(op, node)
    if plans is None:
        return False
    with graph.inserting_before(node):
        kwargs: dict[str, Any] = {
            name: _view(graph, bases[index], view) for name, (index, view) in plans.items()
        }
        for argument in op._schema.arguments:
            if argument.name not in kwargs:
                kwargs[argument.name] = node.kwargs[argument.name]
        ordered = [kwargs.pop(item.name) for item in op._schema.arguments if not item.kwarg_only]
        fresh = graph.call_function(op, tuple(ordered), kwargs)
    values = node.meta["val"]
    fresh.meta = {**node.meta, "val": values[0] if results == 1 else tuple(values[:results])}
    for user in list(node.users):
        index = cast(int, user.args[1])
        if index >= first_base:
            user.replace_all_uses_with(bases[index - first_base])
        elif results == 1:
            user.replace_all_uses_with(fresh)
        else:
            user.args = (fresh, index)
            continue
        graph.erase_node(user)
    graph.erase_node(node)
    for base in bases:
        for user in list(base.users):
            if user.target is _COPY and user.args[:2] == (base, base):
                graph.erase_node(user)
    return True


def _nodes_after(graph: fx.Graph, node: fx.Node) -> set[fx.Node]:
    nodes = list(graph.nodes)
    return set(nodes[nodes.index(node) + 1 :])


def _is_free(base: Any, node: fx.Node, after: set[fx.Node]) -> bool:
    """Whether an input's former content may be lost once a call has run."""
    if not isinstance(base, fx.Node) or base.op != "placeholder":
        return False
    return all(
        user not in after or (user.target is _COPY and user.args[0] is base)
        for user in _readers(base)
        if user is not node
    )


def _readers(base: fx.Node) -> Iterator[fx.Node]:
    for user in base.users:
        yield user
        if user.op == "call_function" and is_view(user):
            yield from _readers(user)


def written_arguments(
    op: torch._ops.OpOverload, node: fx.Node
) -> dict[str, tuple[int, Any]] | None:
    """Written argument -> base and (size, stride, offset), or None for a whole base.

    None when a view is written down in another way, or an argument is a list.
    """
    plans: dict[str, tuple[int, Any]] = {}
    for argument in op._schema.arguments:
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        prefix = f"_{argument.name}_"
        known = {key.removeprefix(prefix): value for key, value in node.kwargs.items()
                 if key.startswith(prefix)}  # fmt: skip
        index = known.pop("base_index", None)
        if not isinstance(index, int):
            return None
        if known.keys() == {"size", "stride", "storage_offset"}:
            plans[argument.name] = (index, tuple(known.values()))
        elif not known:
            plans[argument.name] = (index, None)
        else:
            return None
    return plans


def _view(graph: fx.Graph, base: fx.Node, view: Any) -> fx.Node:
    if view is None:
        return base
    node = graph.call_function(_AS_STRIDED, (base, *view))
    size, stride, offset = (_values(part) for part in view)
    node.meta["val"] = torch.as_strided(base.meta["val"], size, stride, offset)
    node.meta["npu_is_output_view"] = True  # taken on the host: in a program it would be a copy
    return node


def _values(part: Any) -> Any:
    if isinstance(part, (tuple, list)):
        return [_values(item) for item in part]
    return part.meta["val"] if isinstance(part, fx.Node) else part
