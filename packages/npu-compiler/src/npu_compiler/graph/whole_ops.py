"""What is kept whole while torch traces a model, and what is taken apart.

torch traces composite ops into their parts, and an op that a device runs as one kernel is then no
longer seen. Rewrites of the traced graph are in npu_compiler.passes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._decomp import get_decompositions

__all__ = ["decompositions", "keep_attention_whole"]

# torch traces attention into a CPU kernel's op with conditions of its own, or into products and a
# softmax. In inference this op of ours stands for it instead, with the same arguments.
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
torch.library.register_fake("npu_compiler::attention", _attention_fake, lib=_LIBRARY)

_AUTOCAST = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)


def keep_attention_whole(graph_module: fx.GraphModule) -> None:
    """Replaces attention calls in a graph from dynamo by one op; for inference only.

    Calls with dropout keep their form, and graphs under autocast, which casts by torch's own names.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("npu"):
        return
    graph = graph_module.graph
    if any(node.target in _AUTOCAST for node in graph.nodes if node.op == "call_function"):
        return
    for node in graph.nodes:
        if node.op == "call_function" and node.target is F.scaled_dot_product_attention:
            _replace_attention(graph, node)
    graph_module.recompile()


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
    """Returns torch's own decompositions for ops without a converter that are made of others.

    Few on purpose: an op that stays whole lowers to one node, and plugins fuse around it. Batch
    norm and its gradient are taken apart for training: left to the host's kernels, they cut the
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
