"""Rules of convolutions, pooling and resizing."""

from __future__ import annotations

from typing import Any

import torch

from npu_compiler.buckets.call import Call, rule
from npu_compiler.buckets.factors import Dims, is_padded

__all__: list[str] = []

aten = torch.ops.aten


@rule(aten.convolution.default)
def _convolution(call: Call) -> Any:
    dims = call.dims("input")
    call.require_whole("channels vary", dims[1])
    call.require_whole("weights vary", *call.dims("weight"))
    spatial = [axis for axis in range(2, len(dims)) if is_padded(dims[axis])]
    call.require_prefix("windows run over joined dimensions", *dims[2:])
    if call.get("transposed"):
        call.require_whole("is spread over a size that varies", *dims[2:])
    # Zeros behind the true values are what the convolution's own padding is, so each window that
    # the true convolution has sees the same numbers.
    call.set("input", call.writer.masked(call.get("input"), spatial, 0))
    out = call.dims("weight")[0]
    return (dims[0], out, *call.expected[2:])


@rule(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _max_pool(call: Call) -> Any:
    dims = call.dims("self")
    kept = len(dims) - len(call.get("kernel_size"))
    # Indices count within padded planes, which are not the true ones.
    call.require_whole("pools over a size that varies", *dims[kept:])
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
    call.require_whole("covers planes of a size that varies", *dims[-rank:])
    return (*dims[:-rank], *call.expected[-rank:])
