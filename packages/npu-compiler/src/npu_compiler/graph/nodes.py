"""Helpers for nodes of a captured graph: op names, values, views, writes, layouts and new calls."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard, cast

import torch
from torch import fx, nn
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

__all__ = [
    "add_call",
    "add_random_values",
    "axis_order",
    "can_stand_for",
    "copy_graph",
    "copy_inputs",
    "inlined",
    "inverse_order",
    "is_call",
    "is_dense",
    "is_effectful",
    "is_mutation",
    "is_static",
    "is_symbolic",
    "is_view",
    "lazy_module",
    "op_name",
    "plain_tensor",
    "returned_memory",
    "same_value",
    "shares_memory",
    "sizes_of",
    "starts_without_gaps",
    "strides_agree",
    "value_of",
    "view_chain",
    "written_inputs",
    "written_memory",
]


_SAVES_STATE, _TAKES_STATE = run_and_save_rng_state, run_with_rng_state


def op_name(key: Any) -> str:
    """Returns an op's name for messages, friendly names and reports, such as aten.add.Tensor."""
    if isinstance(key, (str, torch._ops.OpOverload)):
        return str(key)
    name = getattr(key, "__name__", None) or type(key).__name__
    module = getattr(key, "__module__", "") or ""
    return f"{module.lstrip('_')}.{name}" if module else name


def copy_graph(module: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy of a graph, independent of rewrites of the original."""
    copy = fx.Graph()
    result = copy.graph_copy(module.graph, {}, return_output_node=True)
    assert isinstance(result, tuple)
    copy.output(result[0]).meta.update(result[1].meta)
    return lazy_module(module, copy)


def lazy_module(root: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """Returns a module of a graph that generates Python code only if it is called."""
    return _LazyGraphModule(root, graph)


def is_symbolic(node: fx.Node) -> bool:
    """Whether a node is a symbolic number, and not a tensor."""
    if node.target is torch.ops.aten._local_scalar_dense.default:
        # Depends on a tensor's content, so it is an ordinary call.
        return False
    value = node.meta.get("val")
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def is_mutation(node: fx.Node) -> bool:
    """Whether a call writes to one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_effectful(node: fx.Node) -> bool:
    """Whether the order of a call matters (random numbers, asserts)."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return (
            node.target is _SAVES_STATE
            or node.is_impure()
            or any(is_effectful(call) for call in _inner_calls(node))
        )
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.is_impure()
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return not _has_no_dropout(node)
    return node.is_impure()


def _inner_calls(node: fx.Node) -> Iterator[fx.Node]:
    """Yields the calls in the graph arguments of a higher-order operator."""
    owner = node.graph.owning_module
    for source in node.all_input_nodes:
        inner = getattr(owner, str(source.target), None) if source.op == "get_attr" else None
        if isinstance(inner, fx.GraphModule):
            yield from (call for call in inner.graph.nodes if call.op == "call_function")


def add_random_values(graph: fx.Graph) -> None:
    """Sets `meta["val"]` of calls that draw or replay random numbers for checkpointing.

    Torch's partitioner replaces calls of random ops by them, without values.
    """
    for node in graph.nodes:
        if node.target not in (_SAVES_STATE, _TAKES_STATE) or "val" in node.meta:
            continue
        skipped = 1 if node.target is _SAVES_STATE else 2
        drawing: Any = node.args[skipped - 1]
        args, kwargs = fx.map_arg(
            (node.args[skipped:], node.kwargs), lambda source: source.meta.get("val")
        )
        tensors = [one for one in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(one)]
        mode = torch._guards.detect_fake_mode(tensors)
        state_size = torch.get_rng_state().shape
        with mode or contextlib.nullcontext():
            result = drawing(*args, **kwargs)
            state = torch.empty(state_size, dtype=torch.uint8)
        node.meta["val"] = (state, result) if node.target is _SAVES_STATE else result


def _has_no_dropout(node: fx.Node) -> bool:
    """Whether a call, such as attention, draws numbers only for dropout, with dropout 0."""
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
    """Returns a node and the chain of bases that it is a view of, to the first that is not a view.

    For a call with several views, such as split, the chain has the element, then the call.
    """
    chain = [node]
    while chain[-1].op == "call_function":
        source = chain[-1].args[0] if chain[-1].args else None
        is_part = chain[-1].target is operator.getitem and _are_views(source)
        if not isinstance(source, fx.Node) or not (is_part or is_view(chain[-1])):
            break
        chain.append(source)
    return chain


def _are_views(node: Any) -> bool:
    """Whether a call returns a list of views of its first argument."""
    return (
        isinstance(node, fx.Node)
        and node.op == "call_function"
        and is_view(node)
        and isinstance(node.meta.get("val"), (tuple, list))
    )


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


# Keys of a call's meta with its origin.
_ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack", "original_aten", "from_node")

# Views that fail for some memory layouts.
_STRICT_VIEWS = (
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.as_strided.default,
)


def is_call(node: Any, *targets: Any) -> TypeGuard[fx.Node]:
    """Whether a value is a call of one of these ops."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def value_of(node: Any) -> Any:
    """Returns the fake value of a node, or the argument unchanged."""
    return node.meta.get("val") if isinstance(node, fx.Node) else node


def sizes_of(node: fx.Node) -> tuple[Any, ...]:
    """Returns the sizes of a node's tensor, including symbolic ones."""
    return tuple(node.meta["val"].shape)


def is_static(node: fx.Node) -> bool:
    """Whether a node is a tensor with static sizes."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in tuple(value.shape))


def same_value(left: Any, right: Any) -> bool:
    """Whether two fake tensors agree in dtype, device, sizes and relevant strides."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    if left.dtype is not right.dtype or left.device != right.device or left.dim() != right.dim():
        return False
    pairs = zip(tuple(left.shape), tuple(right.shape), strict=True)
    return all(_equal(a, b) for a, b in pairs) and strides_agree(left, right)


def strides_agree(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether tensors of one shape have the same memory layout."""
    if left.layout is not torch.strided or right.layout is not torch.strided:
        return False
    return all(
        _equal(a, b) or (isinstance(size, int) and size == 1)
        for size, a, b in zip(tuple(left.shape), left.stride(), right.stride(), strict=True)
    )


def can_stand_for(fresh: fx.Node, node: fx.Node, returned: set[fx.Node]) -> bool:
    """Whether a new call can replace a node.

    Its tensor must have the same dtype and sizes. The memory layout may differ, since a fused op
    returns contiguous results, unless the caller sees it or a view depends on it.
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
    """Adds a call of an overload before a node, with a value from the op's fake kernel.

    It inherits the source line of `origin`.
    """
    values = fx.map_arg(args, lambda node: node.meta["val"])
    value = target(*values, **kwargs)
    with graph.inserting_before(before):
        node = graph.call_function(target, args, kwargs)
    node.meta = {key: origin.meta[key] for key in _ORIGIN if key in origin.meta}
    node.meta["val"] = value
    return node


def copy_inputs(
    graph: fx.Graph,
    calls: Sequence[fx.Node],
    *,
    is_left: Callable[[fx.Node], bool] = lambda _: False,
) -> tuple[dict[fx.Node, fx.Node], list[fx.Node]]:
    """Adds the inputs of another graph's calls: copies of attributes, placeholders for the rest.

    The caller copies nodes for which `is_left` is true. Returns the new node of each original, and
    the originals of the placeholders in order.
    """
    members = set(calls)
    copies: dict[fx.Node, fx.Node] = {}
    inputs: list[fx.Node] = []
    for node in calls:
        for source in node.all_input_nodes:
            if source in members or source in copies or is_left(source):
                continue
            if source.op == "get_attr":
                copies[source] = graph.node_copy(source)
                continue
            copies[source] = graph.placeholder(source.name)
            copies[source].meta = dict(source.meta)
            inputs.append(source)
    return copies, inputs


def returned_memory(graph: fx.Graph) -> set[fx.Node]:
    """Returns the nodes whose memory the caller receives: results, and the bases of their views."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or (node in found and shares_memory(node)):
            found.update(node.all_input_nodes)
    return found


def written_memory(graph: fx.Graph) -> set[fx.Node]:
    """Returns the inputs that a graph writes to, and their views."""
    found = {written for node in graph.nodes for written in written_inputs(node)}
    if found:
        for node in graph.nodes:
            if shares_memory(node) and any(source in found for source in node.all_input_nodes):
                found.add(node)
    return found


def shares_memory(node: fx.Node) -> bool:
    """Whether a call's result may share its argument's memory."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem or node.target is torch.ops.aten._unsafe_view.default:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return any(result.alias_info is not None for result in node.target._schema.returns)


# A program's ports are contiguous. A tensor with permuted axes in memory (channels last, a
# transposed result) is bound as its permutation, without a copy.


def axis_order(meta: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the axes from slowest to fastest in memory, or None if they are in order.

    Symbolic sizes are judged by their hints, so binding must check again.
    """
    if meta.dim() < 2:
        return None
    strides = [_hint(stride) for stride in meta.stride()]
    sizes = [_hint(size) for size in meta.shape]
    if any(stride == 0 and size > 1 for stride, size in zip(strides, sizes, strict=True)):
        return None
    order = list(range(meta.dim()))
    # Axes of size 1 have arbitrary strides, so they keep their position.
    wide = [axis for axis in order if sizes[axis] != 1]
    by_stride = sorted(wide, key=lambda axis: -strides[axis])
    for place, axis in zip(wide, by_stride, strict=True):
        order[place] = axis
    return None if order == sorted(order) else tuple(order)


def inverse_order(order: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the inverse permutation."""
    return tuple(order.index(axis) for axis in range(len(order)))


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor without gradients.

    Conjugate and negative bits are resolved, and all strides are canonical: an axis of size 1 may
    have any stride, also 0, which views as another dtype reject.
    """
    source = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return source.as_strided((source.numel(),), (1,)).view(source.shape)


def is_dense(meta: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its span of memory without gaps and without overlap."""
    order = axis_order(meta) or tuple(range(meta.dim()))
    expected = 1
    for axis in reversed(order):
        size = _hint(meta.shape[axis])
        if size != 1 and _hint(meta.stride()[axis]) != expected:
            return False
        expected *= size
    return True


def starts_without_gaps(view: fx.Node) -> bool:
    """Whether a view fills its memory from the first element on, without gaps."""
    value = view.meta["val"]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return True
    offset = value.storage_offset()
    return isinstance(offset, int) and offset == 0 and is_dense(value)


def _hint(size: Any) -> int:
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else 2


def inlined(
    graph: fx.Graph,
    node: fx.Node,
    function: Callable[..., Any],
    tensors: Sequence[fx.Node],
) -> list[fx.Node]:
    """Inlines the calls of a function of tensors before a node, with the node's origin.

    The function may call only torch functions. Returns the nodes of its results.
    """
    fakes = [tensor.meta["val"] for tensor in tensors]
    with torch.no_grad(), fakes[0].fake_mode:
        traced = make_fx(function)(*fakes)
    traced.graph.eliminate_dead_code()
    inputs = (one for one in traced.graph.nodes if one.op == "placeholder")
    at = dict(zip(inputs, tensors, strict=True))
    with graph.inserting_before(node):
        for one in traced.graph.nodes:
            if one.op == "call_function":
                at[one] = graph.node_copy(one, at.__getitem__)
                at[one].meta = {**node.meta, "val": one.meta["val"]}
    (results,) = (one.args[0] for one in traced.graph.nodes if one.op == "output")
    return [at[one] for one in pytree.tree_leaves(results)]
