"""Forms of ops: functional forms of writing ops, and composite ops that stay whole."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._decomp import get_decompositions

from npu_compiler.graph.nodes import op_name

__all__ = [
    "decompositions",
    "functional_form",
    "has_functional_form",
    "keep_attention_whole",
    "register_shape",
    "written_arguments",
]

# A program has no side effects. So a writing op is converted through its functional form: an op
# with the same arguments that returns the new content of the written ones.
# npu_compiler.passes.memory replaces one by the other.

_ALIAS = re.compile(r"\([^()]*![^()]*\)")
# By name: the library fragment that defines a form, and the schema of the original op.
_MADE: dict[str, tuple[torch.library.Library, str]] = {}


def has_functional_form(key: Any) -> bool:
    """Whether a key is a custom op that writes to tensor arguments."""
    if not isinstance(key, torch._ops.OpOverload) or key.namespace in ("aten", "prim", "prims"):
        return False
    schema = key._schema
    written = [item for item in schema.arguments if item.alias_info and item.alias_info.is_write]
    is_plain = all(str(item.type) == "Tensor" for item in written)
    return bool(written) and is_plain and not any(item.alias_info for item in schema.returns)


def written_arguments(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """Returns the names of the arguments that an op writes to, in schema order."""
    found = (item for item in op._schema.arguments if item.alias_info and item.alias_info.is_write)
    return tuple(item.name for item in found)


def functional_form(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """Returns the functional form of a writing op; defines it at the first call.

    `ns::append(Tensor(a!) cache, Tensor x) -> Tensor` has the form
    `ns::append_functional(Tensor cache, Tensor x) -> (Tensor, Tensor)`: the op's results, then the
    new content of each written argument. Its kernel runs the op on copies.
    """
    name = f"{op._opname}_functional"
    overload = op._overloadname
    qualified = f"{op.namespace}::{name}" + ("" if overload == "default" else f".{overload}")
    schema = str(op._schema)
    made = _MADE.get(qualified)
    if made is None or made[1] != schema:
        if made is not None:
            made[0]._destroy()  # type: ignore[no-untyped-call]
        _MADE[qualified] = _define(op, qualified), schema
    form = getattr(getattr(getattr(torch.ops, op.namespace), name), overload)
    assert isinstance(form, torch._ops.OpOverload)
    return form


def _define(op: torch._ops.OpOverload, qualified: str) -> torch.library.Library:
    library = torch.library.Library(op.namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    kinds = [*(str(item.type) for item in op._schema.returns), *["Tensor"] * len(_places(op))]
    arguments = _ALIAS.sub("", str(op._schema)).split("(", 1)[1].rsplit(" -> ", 1)[0]
    library.define(  # type: ignore[no-untyped-call]
        f"{qualified.split('::')[1]}({arguments} -> ({', '.join(kinds)})"
    )
    call = _on_copies(op)
    library.impl(  # type: ignore[no-untyped-call]
        qualified.split("::")[1], call, "CompositeExplicitAutograd"
    )
    register_shape(library, qualified.split("::")[1], call)
    return library


def register_shape(library: torch.library.Library, name: str, shape: Callable[..., Any]) -> None:
    """Registers the function that computes an op on fake tensors.

    torch.library.register_fake does the same, and searches all modules for the file of its caller,
    which takes 30 ms.
    """
    entry = torch._library.simple_registry.singleton.find(f"{library.ns}::{name}")
    handle = entry.fake_impl.register(shape, __name__, lib=library, allow_override=True)
    library._registration_handles.append(handle)


def _places(op: torch._ops.OpOverload) -> list[int]:
    written = written_arguments(op)
    return [place for place, item in enumerate(op._schema.arguments) if item.name in written]


def _on_copies(op: torch._ops.OpOverload) -> Any:
    names = [item.name for item in op._schema.arguments]
    places = _places(op)
    namespace, name, overload = op.namespace, op._opname, op._overloadname
    by_name = {item.name for item in op._schema.arguments if item.kwarg_only}

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        for place in places:
            given[names[place]] = given[names[place]].clone()
        ordered = [value for name, value in given.items() if name not in by_name]
        # By name: its library may be gone, and another may have redefined the op.
        current = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        results = current(*ordered, **{one: given[one] for one in by_name if one in given})
        own = results if isinstance(results, tuple) else () if results is None else (results,)
        whole = (*own, *(given[names[place]] for place in places))
        return whole if len(whole) > 1 else whole[0]

    call.__name__ = f"{op_name(op)} on copies"
    return call


# torch decomposes composite ops when it traces, and loses ops that a device runs as one kernel.
# Rewrites of the traced graph are in npu_compiler.passes.

# torch traces attention to an op of a CPU kernel with special conditions, or to products and a
# softmax. In inference, this op with the same arguments replaces it.
_LIBRARY = torch.library.Library("npu_compiler", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, "
    "float? scale, bool enable_gqa) -> Tensor"
)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    result = F.scaled_dot_product_attention(
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return result.contiguous()


def _attention_fake(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> torch.Tensor:
    shape = (*query.shape[:-1], value.shape[-1])
    return query.new_empty(shape)


_LIBRARY.impl(  # type: ignore[no-untyped-call]
    "attention", _attention, "CompositeExplicitAutograd"
)
register_shape(_LIBRARY, "attention", _attention_fake)

_AUTOCAST = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)


def keep_attention_whole(graph_module: fx.GraphModule) -> None:
    """Replaces attention calls in a graph from dynamo by one op, for inference only.

    Unchanged are calls with dropout, graphs under autocast, which casts by torch's op names, and
    calls with results that are written later, perhaps through other tensors: the strides of a
    result decide which calls copy it, and the op's strides differ from torch's.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("npu"):
        return
    graph = graph_module.graph
    if any(node.target in _AUTOCAST for node in graph.nodes if node.op == "call_function"):
        return
    for node in graph.nodes:
        if node.op == "call_function" and node.target is F.scaled_dot_product_attention:
            value = node.meta.get("example_value")
            is_known = isinstance(value, torch.Tensor)
            if not (value._version if is_known else _writes(graph)):
                _replace_attention(graph, node)
    graph_module.recompile()


def _writes(graph: fx.Graph) -> bool:
    """Whether a method of a graph writes to its tensor, as relu_ does."""
    return any(
        node.op == "call_method" and str(node.target).endswith("_") and node.target[-2:] != "__"
        for node in graph.nodes
    )


def _replace_attention(graph: fx.Graph, node: fx.Node) -> None:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    if given.get("dropout_p", 0.0) != 0.0:
        return
    arguments = (
        given["query"],
        given["key"],
        given["value"],
        given.get("attn_mask"),
        given.get("is_causal", False),
        given.get("scale"),
        given.get("enable_gqa", False),
    )
    with graph.inserting_before(node):
        fresh = graph.call_function(torch.ops.npu_compiler.attention.default, arguments)
    fresh.meta = dict(node.meta)
    node.replace_all_uses_with(fresh)
    graph.erase_node(node)


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns torch's decompositions of composite ops without a converter.

    There are few on purpose: an op that stays whole lowers to one node, and plugins fuse around it.
    Batch norm and its gradient are decomposed for training: on the host's kernels, they split the
    graphs of a ResNet-50 at each norm, and a step took 1.3 and 1.6 times as long.
    """
    aten = torch.ops.aten
    return dict(
        get_decompositions(
            [
                aten.gelu_backward,
                aten.silu_backward,
                aten.hardswish_backward,
                aten.hardsigmoid_backward,
                aten.hardtanh_backward,
                aten.leaky_relu_backward,
                aten.elu_backward,
                aten.softplus_backward,
                aten.mse_loss,
                aten.mse_loss_backward,
                aten.smooth_l1_loss,
                aten.smooth_l1_loss_backward,
                aten.binary_cross_entropy_with_logits,
                aten.nll_loss_forward,
                aten.nll_loss_backward,
                aten.native_batch_norm,
                aten.native_batch_norm_backward,
                aten._native_batch_norm_legit,
                aten._native_batch_norm_legit_functional,
                aten.native_group_norm_backward,
                aten._fused_rms_norm_backward,
                aten.addmv,
                aten.addr,
                aten.hardshrink,
                aten.softshrink,
                aten.celu,
                aten.glu,
                aten.log_sigmoid_forward,
                aten.log_sigmoid_backward,
                aten.im2col,
                aten.dist,
                aten.expand_as,
                aten.unsafe_split,
                aten.unsafe_chunk,
                aten.threshold,
                aten.frac,
                aten.xlogy,
            ]
        )
    )
