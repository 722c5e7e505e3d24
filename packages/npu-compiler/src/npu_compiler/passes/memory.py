"""Passes on memory: in-place writes, views as outputs, elements read as numbers."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch.utils import _pytree as pytree

from npu_compiler.graph.nodes import add_call, is_call, is_view, starts_without_gaps, view_chain
from npu_compiler.passes.infra.pass_base import Facts, GraphPass

__all__ = [
    "SeparateOutputViews",
    "UseElementsAsTensors",
    "UseFunctionalForms",
    "WriteInPlace",
    "written_arguments",
]

# A number that the host reads splits a program in two.

aten = torch.ops.aten

# Calls that accept a rank-0 tensor instead of a number, with a result of the same dtype.
_TAKERS = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})


@dataclass(frozen=True)
class UseElementsAsTensors(GraphPass):
    """mul(x, item(y)) -> mul(x, view(y, [])), if nothing else reads the number."""

    name = "use_elements_as_tensors"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        count = 0
        for node in list(graph.nodes):
            if not is_call(node, aten._local_scalar_dense.default) or facts.is_kept(node):
                continue
            if node.users and all(_takes_tensor(user, node) for user in node.users):
                element = add_call(graph, node, aten.view.default, (node.args[0], []), origin=node)
                node.replace_all_uses_with(element)
                graph.erase_node(node)
                count += 1
        return count


def _takes_tensor(user: fx.Node, number: fx.Node) -> bool:
    """Whether the number is an operand next to a float tensor of its dtype, with axes."""
    if user.target not in _TAKERS or number in user.kwargs.values():
        return False
    others: list[Any] = [operand for operand in user.args if operand is not number]
    if len(others) != 1 or not isinstance(others[0], fx.Node):
        return False
    other, source = others[0].meta["val"], number.args[0].meta["val"]  # type: ignore[union-attr]
    if not isinstance(other, torch.Tensor) or other.dim() == 0:
        return False
    return bool(source.dtype.is_floating_point and other.dtype.is_floating_point)


# AOTAutograd makes such a call functional: it runs on clones, and copies at the graph's end store
# the clones in the inputs. If the previous content is no longer needed, the call writes to the
# input directly.

_COPY = torch.ops.aten.copy_.default
_AS_STRIDED = torch.ops.aten.as_strided.default


@dataclass(frozen=True)
class WriteInPlace(GraphPass):
    """Replaces functional forms by the writing calls if this does not change results.

    That holds if the written memory belongs to graph inputs, and their previous content is not read
    afterwards. All other calls keep their clones.
    """

    name = "write_in_place"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        return sum(
            _put_writing_call(graph, node)
            for node in list(graph.nodes)
            if node.op == "call_function" and node.target is auto_functionalized_v2
        )


def _put_writing_call(graph: fx.Graph, node: fx.Node) -> bool:
    op = cast(torch._ops.OpOverload, node.args[0])
    bases = list(cast(Any, node.kwargs["_all_bases"]))
    results = len(op._schema.returns)
    first_base = max(results, 1)  # an op without results has None as its first element
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
    """Whether an input's previous content is unused after a call."""
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
    """Returns written argument -> base and (size, stride, offset), or None for a whole base.

    Returns None if a view is described differently, or an argument is a list.
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
    node.meta["npu_is_output_view"] = True  # stays on the host: in a program it would be a copy
    return node


def _values(part: Any) -> Any:
    if isinstance(part, (tuple, list)):
        return [_values(item) for item in part]
    return part.meta["val"] if isinstance(part, fx.Node) else part


# On the host's cores such a call is kept, and its kernel writes in place. A program returns the
# written content, and copies at the graph's end store it in the inputs.


@dataclass(frozen=True)
class UseFunctionalForms(GraphPass):
    """Replaces writing calls with a converter by functional forms, for separate tensors.

    A call that writes to a view of a larger tensor is kept.
    """

    name = "use_functional_forms"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        return sum(
            _put_form(graph, node, facts.functional_forms[cast(Any, node.args[0])])
            for node in list(graph.nodes)
            if node.op == "call_function"
            and node.target is auto_functionalized_v2
            and node.args[0] in facts.functional_forms
            and not facts.is_kept(node)
        )


def _put_form(graph: fx.Graph, node: fx.Node, form: torch._ops.OpOverload) -> bool:
    op = cast(torch._ops.OpOverload, node.args[0])
    plans = written_arguments(op, node)
    if plans is None or any(view is not None for _, view in plans.values()):
        return False
    indices = [index for index, _ in plans.values()]
    if len(set(indices)) < len(indices):
        return False
    bases = cast(Any, node.kwargs["_all_bases"])
    given = {
        item.name: bases[plans[item.name][0]] if item.name in plans else node.kwargs[item.name]
        for item in op._schema.arguments
    }
    ordered = tuple(given.pop(item.name) for item in op._schema.arguments if not item.kwarg_only)
    own = len(op._schema.returns)
    # An op without results has None as its first element.
    former = [*range(own), *(max(own, 1) + index for index in indices)]
    values = tuple(node.meta["val"][place] for place in former)
    with graph.inserting_before(node):
        call = graph.call_function(form, ordered, given)
        call.meta = {**node.meta, "val": values if len(values) > 1 else values[0]}
        for user in list(node.users):
            place = former.index(cast(int, user.args[1]))
            result = call
            if len(values) > 1:
                result = graph.call_function(operator.getitem, (call, place))
                result.meta = {**user.meta, "val": values[place]}
            user.replace_all_uses_with(result)
            graph.erase_node(user)
    graph.erase_node(node)
    return True


# A program writes each result to new contiguous memory. If a graph returns views of one tensor, or
# a view with gaps or an offset, the views must be taken outside of programs. The copies made here
# are used only by the output, so that programs keep their own views.


@dataclass(frozen=True)
class SeparateOutputViews(GraphPass):
    """Takes views that the caller receives on the host."""

    name = "separate_output_views"
    stage = "layout"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        output = next(node for node in graph.nodes if node.op == "output")
        results = [node for node in pytree.tree_leaves(output.args) if isinstance(node, fx.Node)]
        chains = {node: view_chain(node) for node in dict.fromkeys(results)}
        roots = Counter(chain[-1] for chain in chains.values())
        replaced: dict[fx.Node, fx.Node] = {}
        for node, chain in chains.items():
            root = chain[-1]
            if len(chain) == 1:
                continue
            if root.op != "placeholder" and roots[root] == 1 and starts_without_gaps(node):
                continue
            if all(view.meta.get("npu_is_output_view") for view in chain[:-1]):
                continue
            copy = root
            with graph.inserting_before(output):
                for view in reversed(chain[:-1]):
                    before, source = view.args[0], copy
                    fresh = graph.node_copy(view)
                    fresh.replace_input_with(before, source)  # type: ignore[arg-type]
                    fresh.meta["npu_is_output_view"] = True
                    copy = fresh
            replaced[node] = copy
        if replaced:
            output.args = pytree.tree_map_only(
                fx.Node, lambda node: replaced.get(node, node), output.args
            )
            graph.eliminate_dead_code()
        return len(replaced)
