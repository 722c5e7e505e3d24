"""Attention to the cache: which call of the graph it is, and what each of its operands is."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.kernel_programs.calls import ADDS, MULTIPLIES, scalar, stripped
from npu_compiler.kernel_programs.evaluation import Case, Evaluator, Step, inputs_of
from npu_compiler.kernel_programs.refusal import refused
from npu_compiler.kernel_programs.views import is_moving

__all__ = ["AttentionCall", "CachedOperand", "attention_call", "cached_operand"]

_aten = torch.ops.aten
_SDPA = _aten.scaled_dot_product_attention.default
_PRODUCTS = (_aten.matmul.default, _aten.bmm.default)
_RESHAPES = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)
# How far a search looks back from scores to their product.
_FARTHEST = 64
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
        scores: what softmax is taken of, if only computing it tells mask, scale and soft_cap, which
            are None, 0.0 and None then; None otherwise.
        product: the queries times the keys, with `scores`.
    """

    queries: fx.Node
    keys: fx.Node
    values: fx.Node
    mask: fx.Node | None
    scale: float
    soft_cap: float | None = None
    sinks: fx.Node | None = None
    is_turned: bool = False
    scores: fx.Node | None = None
    product: fx.Node | None = None


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


def attention_call(
    node: fx.Node, graph_module: fx.GraphModule, rows: Container[fx.Node]
) -> AttentionCall | None:
    """Returns the attention that ends at a node; None if none does.

    Args:
        node: of a captured step.
        graph_module: the step.
        rows: its nodes that depend on the tokens or the cache.
    """
    if node.target is _SDPA:
        return _fused(node)
    if node.target not in _PRODUCTS or not isinstance(node.args[1], fx.Node):
        return None
    found = _softmax_before(node.args[0])
    if found is None:
        return None
    scores, sinks = found
    known = _spelled_out(node, scores, sinks, graph_module)
    return known if known is not None else _computed(node, scores, sinks, rows)


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


def _softmax_before(weights: Any) -> tuple[Any, fx.Node | None] | None:
    """Returns the scores of which weights are the softmax, and sinks; None for other weights."""
    weights = stripped(weights)
    while isinstance(weights, fx.Node) and weights.target in _RESHAPES:
        weights = stripped(weights.args[0])
    # Sinks are one more score per head, whose share is dropped.
    has_sinks = isinstance(weights, fx.Node) and weights.target is _aten.slice.Tensor
    if has_sinks:
        if weights.args[2:] != (0, -1) or not _is_last(weights, weights.args[1]):
            return None
        weights = stripped(weights.args[0])
    if not isinstance(weights, fx.Node) or weights.target not in _SOFTMAX:
        return None
    if not _is_last(weights, weights.args[1]):
        return None
    scores = stripped(weights.args[0])
    if not has_sinks:
        return scores, None
    scores, sinks = _without_sinks(scores)
    return None if sinks is None else (scores, sinks)


def _computed(
    node: fx.Node, scores: fx.Node, sinks: fx.Node | None, rows: Container[fx.Node]
) -> AttentionCall | None:
    """Attention whose scores are made of the one product before them in a way to be computed."""
    products, pending, seen = [], [scores], {scores}
    while pending and len(seen) < _FARTHEST:
        one = pending.pop()
        if one.target in _PRODUCTS or one.target is _aten.baddbmm.default:
            products.append(one)
            continue
        new = [before for before in inputs_of(one) if before in rows and before not in seen]
        seen.update(new)
        pending += new
    if len(products) != 1:
        return None
    (product,) = products
    queries, keys = product.args[-2:]
    values: Any = node.args[1]
    return AttentionCall(
        queries, keys, values, None, 0.0, None, sinks,  # type: ignore[arg-type]
        is_turned=True, scores=scores, product=product,
    )  # fmt: skip


def _spelled_out(
    node: fx.Node, scores: Any, sinks: fx.Node | None, graph_module: fx.GraphModule
) -> AttentionCall | None:
    """softmax(scale * queries keys^T + mask) @ values in calls of their own."""
    values = node.args[1]
    mask = None
    soft_cap = None
    factor = 1.0
    while isinstance(scores, fx.Node) and scores.target not in _PRODUCTS:
        if scores.target in ADDS and mask is None and soft_cap is None and factor == 1.0:
            scores, mask = stripped(scores.args[0]), scores.args[1]
            continue
        if scores.target in MULTIPLIES or scores.target is _aten.div.Tensor:
            number = scalar(scores.args[1], graph_module)
            inner = stripped(scores.args[0])
            if number is None or not isinstance(inner, fx.Node):
                return None
            if inner.target is _aten.tanh.default and scores.target in MULTIPLIES:
                if factor != 1.0:
                    return None
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


def _is_last(node: fx.Node, dim: Any) -> bool:
    """Whether a number is that of a node's last dimension."""
    return dim in (-1, len(node.meta["val"].shape) - 1)


def _without_sinks(scores: Any) -> tuple[Any, fx.Node | None]:
    """Returns the scores to which one per head was joined, and the parameter with those."""
    while isinstance(scores, fx.Node) and scores.target is _aten.sub.Tensor:
        taken: Any = scores.args[1]
        if not isinstance(taken, fx.Node) or taken.meta["val"].shape[-1] != 1:
            return scores, None
        scores = stripped(scores.args[0])  # less a number per row, which changes no share
    if not isinstance(scores, fx.Node) or scores.target is not _aten.cat.default:
        return scores, None
    parts: Any = scores.args[0]
    if len(parts) != 2 or not _is_last(scores, scores.args[1] if len(scores.args) > 1 else 0):
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
