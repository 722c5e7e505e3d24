"""Rules of calls that reduce dimensions: reductions, norms, products, convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

import npu_compiler.graph.op_forms  # noqa: F401  # defines the attention op
from npu_compiler.buckets.call import Call, Written, rule
from npu_compiler.buckets.rules.elementwise import broadcast
from npu_compiler.buckets.sizes import Dim, Dims, is_padded

__all__: list[str] = []

aten = torch.ops.aten


def _axes(call: Call, given: Any) -> tuple[int, ...]:
    rank = len(call.dims("self"))
    if given is None or given == []:
        return tuple(range(rank))
    found = (given,) if isinstance(given, int) else tuple(given)
    return tuple(axis % max(rank, 1) for axis in found)


def _reduced(call: Call, axes: tuple[int, ...], keepdim: bool) -> Dims:
    dims = call.dims("self")
    if keepdim:
        return tuple(() if axis in axes else dim for axis, dim in enumerate(dims))
    return tuple(dim for axis, dim in enumerate(dims) if axis not in axes)


def _given(call: Call) -> tuple[tuple[int, ...], bool]:
    names = dict(call.items())
    return _axes(call, names.get("dim")), bool(names.get("keepdim", False))


# Bounds of the integers in a program; see lowering/integer_widths.py.
_LEAST_WHOLE, _GREATEST_WHOLE = -(1 << 24), (1 << 24) - 1


def _least(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point:
        return float("-inf")
    return False if dtype is torch.bool else max(torch.iinfo(dtype).min, _LEAST_WHOLE)


def _greatest(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point:
        return float("inf")
    return True if dtype is torch.bool else min(torch.iinfo(dtype).max, _GREATEST_WHOLE)


# Overloads -> the neutral element, by the dtype of the operand.
_NEUTRAL: dict[tuple[Any, ...], Callable[[torch.dtype], Any]] = {
    (aten.sum.default, aten.sum.dim_IntList): lambda dtype: 0,
    (aten.any.default, aten.any.dim, aten.any.dims): lambda dtype: 0,
    (aten.all.default, aten.all.dim, aten.all.dims): lambda dtype: 1,
    (aten.amax.default, aten.max.default): _least,
    (aten.amin.default, aten.min.default): _greatest,
    (aten.logsumexp.default,): lambda dtype: float("-inf"),
}


def _register(targets: tuple[Any, ...], neutral: Callable[[torch.dtype], Any]) -> None:
    @rule(*targets)
    def reduce(call: Call) -> Any:
        axes, keepdim = _given(call)
        source = call.get("self")
        value = neutral(source.meta["val"].dtype)
        call.set("self", call.writer.masked(source, axes, value))
        return _reduced(call, axes, keepdim)


for _targets, _value in _NEUTRAL.items():
    _register(_targets, _value)


@rule(aten.mean.default, aten.mean.dim)
def _mean(call: Call) -> Any:
    writer, source = call.writer, call.get("self")
    axes, keepdim = _given(call)
    dims = call.dims("self")
    reduced = _reduced(call, axes, keepdim)
    if not any(is_padded(dims[axis]) for axis in axes):
        return reduced
    dtype = dict(call.items()).get("dtype") or source.meta["val"].dtype
    total = writer.call(
        aten.sum.dim_IntList, writer.masked(source, axes, 0), list(axes), keepdim, dtype=dtype
    )
    for axis in axes:
        for factor in dims[axis]:
            divisor: Any = factor.size
            if factor.is_padded:
                count = writer.call(aten.view.default, writer.count(factor.true), [])
                divisor = writer.call(aten._to_copy.default, count, dtype=dtype)
            total = writer.call(aten.div.Tensor, total, divisor)
    return Written(total, reduced)


@rule(
    aten.var.correction,
    aten.argmax.default,
    aten.argmin.default,
    aten.linalg_vector_norm.default,
    aten.prod.dim_int,
)
def _whole_only(call: Call) -> Any:
    axes, keepdim = _given(call)
    dims = call.dims("self")
    call.require_whole("reduces over a dynamic size", *(dims[axis] for axis in axes))
    return _reduced(call, axes, keepdim)


@rule(aten.max.dim, aten.min.dim, aten.var_mean.correction)
def _whole_only_pair(call: Call) -> Any:
    found = _whole_only(call)
    return found, found


@rule(aten.topk.default, aten.sort.default)
def _ordered(call: Call) -> Any:
    dims = call.dims("self")
    axis = call.writer.axis(call.get("self"), call.get("dim"))
    call.require_whole("sorts along a dynamic size", dims[axis])

    def result(made: fx.Node) -> tuple[Dims, Dims]:
        found = (*dims[:axis], call.expected[0][axis], *dims[axis + 1 :])
        return found, found

    return result


@rule(
    aten._softmax.default,
    aten.softmax.int,
    aten._log_softmax.default,
    aten.log_softmax.int,
)
def _softmax(call: Call) -> Any:
    source = call.get("self")
    axis = call.writer.axis(source, call.get("dim"))
    if not source.meta["val"].dtype.is_floating_point:
        call.require_whole("takes integers along a dynamic size", call.dims("self")[axis])
    call.set("self", call.writer.masked(source, [axis], float("-inf")))
    return call.dims("self")


@rule(aten.cumsum.default, aten.cumprod.default)
def _cumulative(call: Call) -> Any:
    dims = call.dims("self")
    dim = dims[call.writer.axis(call.get("self"), call.get("dim"))]
    if len(dim) > 1:
        call.require_whole("runs over joined dimensions", dim)
    return dims


@rule(aten.native_layer_norm.default)
def _layer_norm(call: Call) -> Any:
    dims = call.dims("input")
    normal = len(call.get("normalized_shape"))
    call.require_whole("normalizes over a dynamic size", *dims[-normal:])
    statistics = (*dims[:-normal], *([()] * normal))
    return dims, statistics, statistics


@rule(aten._fused_rms_norm.default)
def _rms_norm(call: Call) -> Any:
    dims, statistics, _ = _layer_norm(call)
    return dims, statistics


@rule(aten.native_group_norm.default, sizes=("N",))
def _group_norm(call: Call) -> Any:
    dims = call.dims("input")
    call.require_whole("normalizes over a dynamic size", *dims[1:])
    return dims, call.expected[1], call.expected[2]


@rule(
    aten._native_batch_norm_legit_no_training.default,
)
def _batch_norm(call: Call) -> Any:
    dims = call.dims("input")
    call.require_whole("channels vary", dims[1])
    return dims, call.expected[1], call.expected[2]


def _contract(call: Call, left: str, right: str, left_axis: int, right_axis: int) -> None:
    """Zeroes the padding of the summed dimension in both operands: zero times NaN is NaN."""
    a, b = call.dims(left)[left_axis], call.dims(right)[right_axis]
    if a != b:
        raise call.refuse("the factors are padded differently", a, b)
    if not is_padded(a):
        return
    for name, axis in ((left, left_axis), (right, right_axis)):
        source = call.get(name)
        call.set(name, call.writer.masked(source, [axis % len(call.dims(name))], 0))


def _product(call: Call, left: str, right: str) -> Dims:
    _contract(call, left, right, -1, -2)
    a, b = call.dims(left), call.dims(right)
    return (*(broadcast(call, a[:-2], b[:-2]) if a[:-2] else ()), a[-2], b[-1])


@rule(aten.mm.default, aten.bmm.default)
def _mm(call: Call) -> Any:
    return _product(call, "self", "mat2")


@rule(aten.addmm.default, aten.baddbmm.default)
def _addmm(call: Call) -> Any:
    names = ("mat1", "mat2") if call.target is aten.addmm.default else ("batch1", "batch2")
    return broadcast(call, _product(call, *names), call.dims("self"))


@rule(aten.linear.default)
def _linear(call: Call) -> Any:
    _contract(call, "input", "weight", -1, -1)
    return (*call.dims("input")[:-1], *call.dims("weight")[:-1])


@rule(torch.ops.npu_compiler.attention.default)
def _attention(call: Call) -> Any:
    query, key, value = (call.dims(name) for name in ("query", "key", "value"))
    call.require_whole("the head size is dynamic", query[-1], key[-1], value[-1])
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
    """Masks padded keys, and removes NaN from their values."""
    writer = call.writer
    for name in ("key", "value"):
        source = call.get(name)
        call.set(name, writer.masked(source, [len(call.dims(name)) - 2], 0))
    if call.get("is_causal"):
        if query[-2] != length:
            raise call.refuse("causal attention of independent dynamic sizes", query[-2], length)
        call.require_prefix("causal attention over joined dimensions", length)
        # A true query sees no later key, and thus no padded one.
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


@rule(aten.convolution.default)
def _convolution(call: Call) -> Any:
    dims = call.dims("input")
    call.require_whole("channels vary", dims[1])
    call.require_whole("weights vary", *call.dims("weight"))
    spatial = [axis for axis in range(2, len(dims)) if is_padded(dims[axis])]
    call.require_prefix("windows run over joined dimensions", *dims[2:])
    if call.get("transposed"):
        call.require_whole("is broadcast over a dynamic size", *dims[2:])
    # Zeros after the true values equal the convolution's own padding, so each true window sees the
    # same numbers.
    call.set("input", call.writer.masked(call.get("input"), spatial, 0))
    out = call.dims("weight")[0]
    return (dims[0], out, *call.expected[2:])


@rule(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _max_pool(call: Call) -> Any:
    dims = call.dims("self")
    kept = len(dims) - len(call.get("kernel_size"))
    # Indices count positions in padded planes, which differ from the true ones.
    call.require_whole("pools over a dynamic size", *dims[kept:])
    pooled: Dims = (*dims[:kept], *call.expected[0][kept:])
    return pooled, pooled


@rule(
    aten.avg_pool1d.default,
    aten.avg_pool2d.default,
    aten.avg_pool3d.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
    aten.adaptive_avg_pool1d.default,
    aten.upsample_nearest2d.vec,
    aten.upsample_nearest2d.default,
    aten.upsample_bilinear2d.vec,
    aten.upsample_bilinear2d.default,
)
def _planes(call: Call) -> Any:
    name = call.target._schema.arguments[0].name
    dims = call.dims(name)
    rank = 1 if "1d" in str(call.target) else 3 if "3d" in str(call.target) else 2
    call.require_whole("covers planes of a dynamic size", *dims[-rank:])
    return (*dims[:-rank], *call.expected[-rank:])
