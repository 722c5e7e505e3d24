"""Converters of scaled dot product attention, for every op that torch traces it to."""

from __future__ import annotations

import math
from typing import Any

import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering import nan
from npu_compiler.lowering.context import MASKED, Context, same_size
from npu_compiler.lowering.registry import converter

__all__ = ["attend"]

aten = torch.ops.aten


def _rule_no_dropout(node: fx.Node, dropout_p: float = 0.0, **_: Any) -> str | None:
    return "dropout draws random numbers" if dropout_p else None


def _additive(ctx: Context, mask: fx.Node, dtype: torch.dtype) -> ov.Output:
    value = ctx.get(mask)
    if ctx.dtype(mask) is not torch.bool:
        # torch turns False of a boolean mask into -inf before it calls a kernel.
        is_seen = _is_seen(ctx, value)
        hidden = ctx.number(MASKED, dtype)
        return ops.select(is_seen, ctx.convert(value, dtype), hidden).output(0)
    return ops.select(value, ctx.number(0.0, dtype), ctx.number(MASKED, dtype)).output(0)


def _is_seen(ctx: Context, mask: ov.Output) -> ov.Output:
    """Returns where an additive mask is not -inf; a NaN counts as seen and makes its row NaN."""
    value = ctx.convert(mask, torch.float32)
    return ops.not_equal(value, ctx.number(-math.inf, torch.float32)).output(0)


def _zero_dead_rows(ctx: Context, output: ov.Output, mask: Any, dtype: torch.dtype) -> ov.Output:
    """Zeroes rows of queries that see no key, as torch does; MASKED alone gives a mean."""
    if mask is None:
        return output
    seen = ctx.get(mask)
    if ctx.dtype(mask) is not torch.bool:
        seen = _is_seen(ctx, seen)
    is_live = ops.reduce_logical_or(seen, ctx.integers([ctx.rank(mask) - 1]), True)
    return ops.select(is_live, output, ctx.number(0.0, dtype)).output(0)


def _heads_alike(ctx: Context, query: fx.Node, other: fx.Node) -> ov.Output:
    """Repeats heads of a key or value that several query heads share."""
    value = ctx.get(other)
    if same_size(ctx.meta(query).shape[-3], ctx.meta(other).shape[-3]):
        return value
    heads, shared = ctx.sizes(query)[-3], ctx.sizes(other)[-3]
    width = ctx.sizes(other)[-1]
    if heads is None or shared is None or width is None or ctx.rank(other) != 4:
        ctx.refuse("grouped heads need rank 4, and a static number and size of heads")
    wide = ops.unsqueeze(value, ctx.integers([2]))
    copies = ctx.integers([1, 1, heads // shared, 1, 1])
    tiled = ops.broadcast(wide, copies, broadcast_spec="BIDIRECTIONAL")
    return ops.reshape(tiled, ctx.integers([0, heads, -1, width]), True).output(0)


def _scale(ctx: Context, query: fx.Node, scale: Any, dtype: torch.dtype) -> ov.Output:
    """Returns the scale of the scores; by default 1 / sqrt(head size)."""
    if scale is not None:
        return ctx.get(scale, dtype)
    width = ctx.sizes(query)[-1]
    if width is not None:
        return ctx.number(1 / math.sqrt(width), dtype)
    size = ctx.convert(ctx.reshape(ctx.size(query, -1), []), dtype)
    return ops.divide(ctx.number(1, dtype), ops.sqrt(size)).output(0)


@converter(
    aten.scaled_dot_product_attention.default,
    torch.ops.npu_compiler.attention.default,
    rule=_rule_no_dropout,
)
def convert_sdpa(
    ctx: Context,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    attn_mask: Any,
    is_causal: Any,
    scale: Any,
    **_: Any,
) -> ov.Output:
    if attn_mask is not None and is_causal:
        # OpenVINO then ignores the mask; torch's kernels apply both.
        ctx.refuse("a mask together with is_causal")
    bias = None if attn_mask is None else _additive(ctx, attn_mask, ctx.dtype(query))
    output = attend(ctx, query, key, value, bias=bias, causal=bool(is_causal), scale=scale)
    return _zero_dead_rows(ctx, output, attn_mask, ctx.out_dtype(0))


def attend(
    ctx: Context,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    *,
    bias: ov.Output | None,
    causal: bool,
    scale: Any,
) -> ov.Output:
    """Lowers attention to one node.

    Args:
        ctx: context of the lowering.
        query: (batch, heads, length, head size).
        key: (batch, key heads, keys, head size); query heads may share a key head.
        value: shaped like key.
        bias: added to the scores, in the dtype of query; MASKED hides a key.
        causal: whether query i sees keys 0 to i.
        scale: factor of the scores; None for 1 / sqrt(head size).
    """
    dtype = ctx.dtype(query)
    # The scale is the input after the mask, so an absent mask is a scalar 0.
    mask = ctx.number(0.0, dtype) if bias is None else bias
    node = ops.scaled_dot_product_attention(
        ctx.get(query),
        _heads_alike(ctx, query, key),
        _heads_alike(ctx, query, value),
        mask,
        _scale(ctx, query, scale, dtype),
        causal=causal,
    )
    return node.output(0)


def _log_sum_exp(
    ctx: Context, query: fx.Node, key: fx.Node, mask: Any, causal: bool, scale: Any
) -> Any:
    """Returns the log-sum-exp that the gradient needs; None if it is unused."""
    if not ctx.is_read(1):
        return None
    scores = _scores(ctx, query, key, mask, causal, scale)
    axes = [ctx.rank(query) - 1]
    axis = ctx.integers(axes)
    peak = ops.reduce_max(scores, axis, True)
    powers = nan.exp(ctx, ops.subtract(scores, peak).output(0))
    total = ops.reduce_sum(powers, axis, True)
    return ctx.squeeze(ops.add(ops.log(total), peak).output(0), axes)


def _scores(
    ctx: Context, query: fx.Node, key: fx.Node, mask: Any, causal: bool, scale: Any
) -> ov.Output:
    """Returns query times key, scaled and masked, in float32."""
    work = torch.float32
    alike = ctx.convert(_heads_alike(ctx, query, key), work)
    product = ops.matmul(ctx.get(query, work), alike, False, True)
    scores = ops.multiply(product, _scale(ctx, query, scale, work)).output(0)
    if mask is not None:
        scores = ops.add(scores, _additive(ctx, mask, work)).output(0)
    if causal:
        rows, columns = ctx.sizes(query)[-2], ctx.sizes(key)[-2]
        if rows is None or columns is None:
            ctx.refuse("the statistic of causal attention over symbolic sizes")
        hidden = torch.full((rows, columns), MASKED).triu(1)
        scores = ops.add(scores, ctx.constant(hidden)).output(0)
    return scores


@converter(
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_fused_attention_overrideable.default,
    rule=_rule_no_dropout,
)
def convert_flash(
    ctx: Context,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    is_causal: bool,
    scale: Any,
    **given: Any,
) -> Any:
    mask = given.get("attn_mask", given.get("attn_bias"))
    output = convert_sdpa(ctx, query, key, value, mask, is_causal, scale)
    results = output, _log_sum_exp(ctx, query, key, mask, is_causal, scale)
    # The other op has seven further results, which are not computed.
    is_for_cpu = ctx.node.target is aten._scaled_dot_product_flash_attention_for_cpu.default
    return results if is_for_cpu else (*results, *[None] * 7)


@converter(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, rule=_rule_no_dropout)
def convert_flash_for_cpu_backward(
    ctx: Context,
    grad_out: fx.Node,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    out: fx.Node,
    logsumexp: fx.Node,
    is_causal: bool,
    attn_mask: Any,
    scale: Any,
    **_: Any,
) -> Any:
    """Lowers the gradient of attention (Dao et al., FlashAttention, 2022, appendix B.2)."""
    if ctx.sizes(query)[-3] != ctx.sizes(key)[-3]:
        ctx.refuse("the gradient of grouped heads")
    work = torch.float32
    axis = ctx.integers([ctx.rank(query) - 1])
    statistic = ops.unsqueeze(ctx.get(logsumexp, work), axis)
    scores = _scores(ctx, query, key, attn_mask, is_causal, scale)
    powers = nan.exp(ctx, ops.subtract(scores, statistic).output(0))
    weights = _zero_dead_rows(ctx, powers, attn_mask, work)
    grad = ctx.get(grad_out, work)
    grad_value = ops.matmul(weights, grad, True, False)
    grad_weights = ops.matmul(grad, ctx.get(value, work), False, True)
    shift = ops.reduce_sum(ops.multiply(grad, ctx.get(out, work)), axis, True)
    grad_scores = ops.multiply(weights, ops.subtract(grad_weights, shift))
    grad_scores = ops.multiply(grad_scores, _scale(ctx, query, scale, work))
    grad_query = ops.matmul(grad_scores, ctx.get(key, work), False, False)
    grad_key = ops.matmul(grad_scores, ctx.get(query, work), True, False)
    parts = (grad_query, grad_key, grad_value)
    return tuple(
        ctx.convert(part.output(0), ctx.out_dtype(index)) for index, part in enumerate(parts)
    )
