"""Attention to the cache: which call of the graph it is, and what each of its operands is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.kernel_programs.calls import ADDS, MULTIPLIES, scalar, stripped
from npu_compiler.kernel_programs.evaluation import Case, Evaluator, Step
from npu_compiler.kernel_programs.refusal import refused
from npu_compiler.kernel_programs.views import is_moving

__all__ = ["AttentionCall", "CachedOperand", "attention_call", "cached_operand"]

_aten = torch.ops.aten
_SDPA = _aten.scaled_dot_product_attention.default
_PRODUCTS = (_aten.matmul.default, _aten.bmm.default)
_SOFTMAX = (_aten.softmax.int, _aten._softmax.default)


@dataclass(frozen=True)
class AttentionCall:
    """softmax(cap(scale * queries keys^T) + mask) values, for heads of a batch.

    Attributes:
        queries: (batch, heads, tokens, key size).
        keys: (batch, heads, all, key size); transposed in its last two dimensions if `is_turned`.
        values: (batch, heads, all, value size).
        mask: None for none.
        scale: of the scores.
        soft_cap: None for none.
        sinks: a parameter (heads,); None for none.
        is_turned: see keys.
    """

    queries: fx.Node
    keys: fx.Node
    values: fx.Node
    mask: fx.Node | None
    scale: float
    soft_cap: float | None = None
    sinks: fx.Node | None = None
    is_turned: bool = False


@dataclass(frozen=True)
class CachedOperand:
    """Keys or values: what the cache holds, then those of the new tokens.

    Attributes:
        whole: the node that joins both, an output of the graph.
        cache: the placeholder.
        new: the new tokens' (batch, heads, tokens, size).
    """

    whole: fx.Node
    cache: fx.Node
    new: fx.Node


def attention_call(node: fx.Node, graph_module: fx.GraphModule) -> AttentionCall | None:
    """Returns the attention that ends at a node; None if none does."""
    if node.target is _SDPA:
        return _fused(node)
    if node.target in _PRODUCTS:
        return _spelled_out(node, graph_module)
    return None


def _fused(node: fx.Node) -> AttentionCall:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    arguments: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    queries = arguments["query"]
    scale = arguments.get("scale")
    if scale is None:
        scale = int(queries.meta["val"].shape[-1]) ** -0.5
    if arguments.get("is_causal") or arguments.get("dropout_p"):
        raise refused(node, "is causal by itself or drops scores, whatever the cache holds")
    return AttentionCall(
        queries, arguments["key"], arguments["value"], arguments.get("attn_mask"), float(scale)
    )


def _spelled_out(node: fx.Node, graph_module: fx.GraphModule) -> AttentionCall | None:
    """softmax(...) @ values in calls of their own."""
    weights, values = stripped(node.args[0]), node.args[1]
    # Sinks are one more score per head, whose share is dropped.
    has_sinks = isinstance(weights, fx.Node) and weights.target is _aten.slice.Tensor
    if has_sinks:
        weights = stripped(weights.args[0])
    if not isinstance(weights, fx.Node) or weights.target not in _SOFTMAX:
        return None
    scores = stripped(weights.args[0])
    sinks: fx.Node | None = None
    if has_sinks:
        scores, sinks = _without_sinks(scores)
        if sinks is None:
            return None
    mask = None
    soft_cap = None
    factor = 1.0
    while isinstance(scores, fx.Node) and scores.target not in _PRODUCTS:
        if scores.target in ADDS and mask is None:
            scores, mask = stripped(scores.args[0]), scores.args[1]
            continue
        if scores.target in MULTIPLIES or scores.target is _aten.div.Tensor:
            number = scalar(scores.args[1], graph_module)
            inner = stripped(scores.args[0])
            if number is None or not isinstance(inner, fx.Node):
                return None
            if inner.target is _aten.tanh.default and scores.target in MULTIPLIES:
                soft_cap = number
                capped = stripped(inner.args[0])
                if not isinstance(capped, fx.Node) or capped.target is not _aten.div.Tensor:
                    return None
                if scalar(capped.args[1], graph_module) != number:
                    return None
                scores = stripped(capped.args[0])
                continue
            factor *= number if scores.target in MULTIPLIES else 1 / number
            scores = inner
            continue
        return None
    if not isinstance(scores, fx.Node) or not isinstance(values, fx.Node):
        return None
    queries, keys = scores.args[0], scores.args[1]
    if not isinstance(queries, fx.Node) or not isinstance(keys, fx.Node):
        return None
    return AttentionCall(queries, keys, values, mask, factor, soft_cap, sinks, is_turned=True)


def _without_sinks(scores: Any) -> tuple[Any, fx.Node | None]:
    """Returns the scores to which one per head was joined, and the parameter with those."""
    while isinstance(scores, fx.Node) and scores.target is _aten.sub.Tensor:
        scores = stripped(scores.args[0])  # less their greatest, which softmax takes anyway
    if not isinstance(scores, fx.Node) or scores.target is not _aten.cat.default:
        return scores, None
    parts: Any = scores.args[0]
    if len(parts) != 2:
        return scores, None
    sinks = parts[1]
    while isinstance(sinks, fx.Node) and is_moving(sinks):
        sinks = sinks.args[0]
    return stripped(parts[0]), sinks if sinks.op == "get_attr" else None


def cached_operand(
    graph_module: fx.GraphModule, step: Step, call: fx.Node, operand: fx.Node, *, is_turned: bool
) -> CachedOperand:
    """Returns what keys or values are made of.

    Args:
        graph_module: the captured step.
        step: its placeholders.
        call: the attention, for the error.
        operand: keys or values (batch, heads, all, size); each head of the cache may be repeated.
        is_turned: whether the last two dimensions of it are exchanged.

    Raises:
        LoweringError: [not-row-wise] if it is not the cache followed by the new tokens'.
    """
    whole = operand
    while is_moving(whole) and isinstance(whole.args[0], fx.Node):
        whole = whole.args[0]
    if whole.target is not _aten.cat.default:
        raise refused(call, "reads other keys or values than the cache's and the new tokens'")
    parts: Any = whole.args[0]
    dim = whole.args[1] if len(whole.args) > 1 else 0
    rank = len(whole.meta["val"].shape)
    if len(parts) != 2 or parts[0] not in step.caches or int(dim) % rank != 2:  # type: ignore[arg-type]
        raise refused(call, "reads a cache that grows in another way than by its new tokens")
    case = Case()
    evaluator = Evaluator(graph_module, step, case)
    shape = [evaluator.size(size) for size in whole.meta["val"].shape]
    numbers = torch.arange(torch.Size(shape).numel()).view(shape)
    result: torch.Tensor = evaluator.with_values({whole: numbers}).value(operand)
    if is_turned:
        result = result.transpose(-1, -2)
    result = result.reshape(case.batch, -1, *result.shape[-2:])
    repeats = result.shape[1] // shape[1]
    if not torch.equal(result, numbers.repeat_interleave(repeats, 1)):
        raise refused(call, "reads the cache's heads in another order")
    return CachedOperand(whole, parts[0], parts[1])
