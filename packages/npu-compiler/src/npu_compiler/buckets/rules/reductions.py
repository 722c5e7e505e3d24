"""Rules of reductions, softmax, norms and cumulative ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from npu_compiler.buckets.call import Call, Written, rule
from npu_compiler.buckets.factors import Dims, is_padded

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


def _neutral(call: Call, value: Any) -> Any:
    axes, keepdim = _given(call)
    call.set("self", call.writer.masked(call.get("self"), axes, value))
    return _reduced(call, axes, keepdim)


# Whole numbers that a program computes with lie between these; see lowering/integer_widths.py.
_LEAST_WHOLE, _GREATEST_WHOLE = -(1 << 24), (1 << 24) - 1


def _least(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point:
        return float("-inf")
    return False if dtype is torch.bool else max(torch.iinfo(dtype).min, _LEAST_WHOLE)


def _greatest(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point:
        return float("inf")
    return True if dtype is torch.bool else min(torch.iinfo(dtype).max, _GREATEST_WHOLE)


@rule(aten.sum.default, aten.sum.dim_IntList)
def _sum(call: Call) -> Any:
    return _neutral(call, 0)


@rule(aten.any.default, aten.any.dim, aten.any.dims)
def _any(call: Call) -> Any:
    return _neutral(call, 0)


@rule(aten.all.default, aten.all.dim, aten.all.dims)
def _all(call: Call) -> Any:
    return _neutral(call, 1)


@rule(aten.amax.default, aten.max.default)
def _amax(call: Call) -> Any:
    return _neutral(call, _least(call.get("self").meta["val"].dtype))


@rule(aten.amin.default, aten.min.default)
def _amin(call: Call) -> Any:
    return _neutral(call, _greatest(call.get("self").meta["val"].dtype))


@rule(aten.logsumexp.default)
def _logsumexp(call: Call) -> Any:
    return _neutral(call, float("-inf"))


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
    call.require_whole("reduces over a size that varies", *(dims[axis] for axis in axes))
    return _reduced(call, axes, keepdim)


@rule(aten.max.dim, aten.min.dim, aten.var_mean.correction)
def _whole_only_pair(call: Call) -> Any:
    found = _whole_only(call)
    return found, found


@rule(aten.topk.default, aten.sort.default)
def _ordered(call: Call) -> Any:
    dims = call.dims("self")
    axis = call.writer.axis(call.get("self"), call.get("dim"))
    call.require_whole("orders along a size that varies", dims[axis])

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
        call.require_whole("takes integers along a size that varies", call.dims("self")[axis])
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
    call.require_whole("normalizes over a size that varies", *dims[-normal:])
    statistics = (*dims[:-normal], *([()] * normal))
    return dims, statistics, statistics


@rule(aten._fused_rms_norm.default)
def _rms_norm(call: Call) -> Any:
    dims, statistics, _ = _layer_norm(call)
    return dims, statistics


@rule(aten.native_group_norm.default, sizes=("N",))
def _group_norm(call: Call) -> Any:
    dims = call.dims("input")
    call.require_whole("normalizes over a size that varies", *dims[1:])
    return dims, call.expected[1], call.expected[2]


@rule(
    aten._native_batch_norm_legit_no_training.default,
)
def _batch_norm(call: Call) -> Any:
    dims = call.dims("input")
    call.require_whole("channels vary", dims[1])
    return dims, call.expected[1], call.expected[2]
