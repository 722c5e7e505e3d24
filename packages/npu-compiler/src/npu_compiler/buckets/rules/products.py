"""Rules of matrix products and attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

import npu_compiler.graph.whole_ops  # noqa: F401  # defines the attention op
from npu_compiler.buckets.call import Call, rule
from npu_compiler.buckets.factors import Dim, Dims, is_padded
from npu_compiler.buckets.rules.elementwise import broadcast

__all__: list[str] = []

aten = torch.ops.aten


def _contract(call: Call, left: str, right: str, left_axis: int, right_axis: int) -> None:
    """Zeros behind the true values of what is summed over, in both: zero times NaN is NaN."""
    a, b = call.dims(left)[left_axis], call.dims(right)[right_axis]
    if a != b:
        raise call.refuse("differently padded tensors are multiplied", a, b)
    if not is_padded(a):
        return
    for name, axis in ((left, left_axis), (right, right_axis)):
        source = call.get(name)
        call.set(name, call.writer.masked(source, [axis % len(call.dims(name))], 0))


@rule(aten.mm.default, aten.bmm.default)
def _mm(call: Call) -> Any:
    _contract(call, "self", "mat2", -1, -2)
    left, right = call.dims("self"), call.dims("mat2")
    return (
        (*broadcast(call, left[:-2], right[:-2]), left[-2], right[-1])
        if left[:-2]
        else (
            left[-2],
            right[-1],
        )
    )


def _added(call: Call, left: str, right: str) -> Dims:
    _contract(call, left, right, -1, -2)
    a, b = call.dims(left), call.dims(right)
    product: Dims = (*(broadcast(call, a[:-2], b[:-2]) if a[:-2] else ()), a[-2], b[-1])
    return broadcast(call, product, call.dims("self"))


@rule(aten.addmm.default)
def _addmm(call: Call) -> Any:
    return _added(call, "mat1", "mat2")


@rule(aten.baddbmm.default)
def _baddbmm(call: Call) -> Any:
    return _added(call, "batch1", "batch2")


@rule(aten.linear.default)
def _linear(call: Call) -> Any:
    _contract(call, "input", "weight", -1, -1)
    return (*call.dims("input")[:-1], *call.dims("weight")[:-1])


@rule(torch.ops.npu_compiler.attention.default)
def _attention(call: Call) -> Any:
    query, key, value = (call.dims(name) for name in ("query", "key", "value"))
    call.require_whole("the width of a head varies", query[-1], key[-1], value[-1])
    if key[-2] != value[-2]:
        raise call.refuse("keys and values are padded differently", key[-2], value[-2])
    _check_batches(call, query, key)
    if is_padded(key[-2]):
        _hide_keys(call, query, key[-2])
    return (*query[:-1], value[-1])


def _check_batches(call: Call, query: Dims, key: Dims) -> None:
    for ours, theirs in zip(query[:-2], key[:-2], strict=True):
        if ours != theirs and (is_padded(ours) or is_padded(theirs)):
            raise call.refuse("queries and keys are padded differently", ours, theirs)
    if isinstance(call.get("attn_mask"), fx.Node):
        mask = call.dims("attn_mask")
        wanted: Dims = (*query[:-1], key[-2])
        for dim, meets in zip(reversed(mask), reversed(wanted), strict=False):
            if dim not in ((), meets):
                raise call.refuse("the mask is padded differently", dim, meets)


def _hide_keys(call: Call, query: Dims, length: Dim) -> None:
    """No weight for keys without a true value, and no NaN from what stands there."""
    writer = call.writer
    for name in ("key", "value"):
        source = call.get(name)
        call.set(name, writer.masked(source, [len(call.dims(name)) - 2], 0))
    if call.get("is_causal"):
        if query[-2] != length:
            raise call.refuse("causal attention of sizes that vary apart", query[-2], length)
        call.require_prefix("causal attention over joined dimensions", length)
        # A true query sees no key behind itself, and so none without a true value.
        return
    mask = call.get("attn_mask")
    if mask is None:
        behind = writer.without_true_value(length)
        seen = writer.call(aten.logical_not.default, behind)
        rank = len(query)
        seen = writer.call(aten.view.default, seen, [*([1] * (rank - 1)), -1])
        queries = writer.shape(call.get("query"))[-2]
        mask = writer.call(
            aten.expand.default, seen, [*([1] * (rank - 2)), queries, writer.shape(seen)[-1]]
        )
        writer.dims[mask] = (*([()] * (rank - 2)), query[-2], length)
        call.set("attn_mask", mask)
        return
    if not call.dims("attn_mask")[-1]:
        raise call.refuse("one mask for all keys", length)
    is_bool = mask.meta["val"].dtype is torch.bool
    axis = len(call.dims("attn_mask")) - 1
    call.set("attn_mask", writer.masked(mask, [axis], False if is_bool else float("-inf")))
