"""Reading and making calls of a graph: values, equality of values, and calls with their values."""

from __future__ import annotations

import operator
from typing import Any, TypeGuard

import torch
from torch import fx

from npu_compiler.graph.calls import written_inputs

__all__ = [
    "add_call",
    "can_stand_for",
    "is_call",
    "is_static",
    "returned_memory",
    "same_value",
    "shares_memory",
    "sizes_of",
    "strides_agree",
    "value_of",
    "written_memory",
]

# Of a call's meta the parts that say where it came from.
_ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack", "original_aten", "from_node")

# Views that fail where elements do not lie as they expect.
_STRICT_VIEWS = (
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.as_strided.default,
)


def is_call(node: Any, *targets: Any) -> TypeGuard[fx.Node]:
    """Whether something is a call of one of these ops."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def value_of(node: Any) -> Any:
    """The fake value of a node, or what is given itself."""
    return node.meta.get("val") if isinstance(node, fx.Node) else node


def sizes_of(node: fx.Node) -> tuple[Any, ...]:
    """The sizes of a node's tensor, symbolic ones as they are."""
    return tuple(node.meta["val"].shape)


def is_static(node: fx.Node) -> bool:
    """Whether a node is a tensor whose sizes are numbers."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in tuple(value.shape))


def same_value(left: Any, right: Any) -> bool:
    """Whether two fake tensors agree in dtype, device, sizes and, where sizes matter, strides."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    if left.dtype is not right.dtype or left.device != right.device or left.dim() != right.dim():
        return False
    pairs = zip(tuple(left.shape), tuple(right.shape), strict=True)
    return all(_equal(a, b) for a, b in pairs) and strides_agree(left, right)


def strides_agree(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether elements of tensors of one shape lie alike."""
    if left.layout is not torch.strided or right.layout is not torch.strided:
        return False
    return all(
        _equal(a, b) or (isinstance(size, int) and size == 1)
        for size, a, b in zip(tuple(left.shape), left.stride(), right.stride(), strict=True)
    )


def can_stand_for(fresh: fx.Node, node: fx.Node, returned: set[fx.Node]) -> bool:
    """Whether a new call can be read in place of another.

    Its tensor has the same dtype and sizes. Its elements may lie otherwise, as a fused op gives
    contiguous results, unless the caller sees them or a view is taken that asks how they lie.

    Args:
        fresh: the new call.
        node: the one that it replaces.
        returned: see returned_memory.
    """
    left, right = value_of(fresh), value_of(node)
    if same_value(left, right):
        return True
    if node in returned or any(user.target in _STRICT_VIEWS for user in node.users):
        return False
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    return same_value(left.new_empty(left.shape), right.new_empty(right.shape))


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return isinstance(left, type(right)) and str(left) == str(right)


def add_call(
    graph: fx.Graph,
    before: fx.Node,
    target: Any,
    args: tuple[Any, ...],
    *,
    origin: fx.Node,
    **kwargs: Any,
) -> fx.Node:
    """Adds a call before a node, with the value that the op's fake gives.

    Args:
        graph: to add to.
        before: the node that the call stands before.
        target: an overload.
        args: nodes and numbers, in the order of the schema.
        origin: the node whose source line the call takes over.
        kwargs: keyword arguments of the op.
    """
    values = fx.map_arg(args, lambda node: node.meta["val"])
    value = target(*values, **kwargs)
    with graph.inserting_before(before):
        node = graph.call_function(target, args, kwargs)
    node.meta = {key: origin.meta[key] for key in _ORIGIN if key in origin.meta}
    node.meta["val"] = value
    return node


def returned_memory(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose memory the caller gets: results, and what they are views of."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or (node in found and shares_memory(node)):
            found.update(node.all_input_nodes)
    return found


def written_memory(graph: fx.Graph) -> set[fx.Node]:
    """The inputs that a graph writes to, and the views of them."""
    found = {written for node in graph.nodes for written in written_inputs(node)}
    if found:
        for node in graph.nodes:
            if shares_memory(node) and any(source in found for source in node.all_input_nodes):
                found.add(node)
    return found


def shares_memory(node: fx.Node) -> bool:
    """Whether a call is a view: its result may be memory of its argument."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem or node.target is torch.ops.aten._unsafe_view.default:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return any(result.alias_info is not None for result in node.target._schema.returns)
