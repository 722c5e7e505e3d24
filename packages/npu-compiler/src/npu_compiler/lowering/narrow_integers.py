"""Which calls take int8, uint8 and int16 tensors: those that move, cast and compare values.

Arithmetic in these dtypes wraps around in torch and does not in a program, which computes in int32.
Casts wrap around by themselves, see npu_compiler.lowering.context.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from npu_compiler.lowering.arguments import bind_arguments
from npu_compiler.lowering.dtypes import NARROW_DTYPES

__all__ = ["CASTS", "MOVES", "takes_narrow_integers"]

aten = torch.ops.aten

# Casts and copies, in both directions.
CASTS = frozenset(
    {
        aten._to_copy.default,
        aten.to.dtype,
        aten.to.dtype_layout,
        aten.to.device,
        aten.type_as.default,
        torch.ops.prims.convert_element_type.default,
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
        aten.contiguous.default,
        aten.lift_fresh_copy.default,
        aten.lift_fresh.default,
        aten.lift.default,
        aten.copy.default,
    }
)
MOVES = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten._reshape_alias.default,
        aten._reshape_copy.default,
        aten.view_copy.default,
        aten.flatten.using_ints,
        aten.unflatten.int,
        aten.permute.default,
        aten.permute_copy.default,
        aten.transpose.int,
        aten.swapaxes.default,
        aten.t.default,
        aten.numpy_T.default,
        aten.expand.default,
        aten.expand_copy.default,
        aten.expand_as.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.slice.Tensor,
        aten.slice_copy.Tensor,
        aten.narrow.default,
        aten.select.int,
        aten.select_copy.int,
        aten.split.Tensor,
        aten.chunk.default,
        aten.split_with_sizes.default,
        aten.split_with_sizes_copy.default,
        aten.unbind.int,
        aten.cat.default,
        aten.concat.default,
        aten.concatenate.default,
        aten.stack.default,
        aten.repeat.default,
        aten.flip.default,
        aten.roll.default,
        aten.index_select.default,
        aten.gather.default,
        aten.index.Tensor,
    }
)
# With a number beside the tensors, which must be one of the dtype.
_WITH_NUMBERS = frozenset(
    {
        aten.constant_pad_nd.default,
        aten.where.self,
        aten.masked_fill.Scalar,
        aten.eq.Tensor,
        aten.eq.Scalar,
        aten.ne.Tensor,
        aten.ne.Scalar,
        aten.lt.Tensor,
        aten.lt.Scalar,
        aten.le.Tensor,
        aten.le.Scalar,
        aten.gt.Tensor,
        aten.gt.Scalar,
        aten.ge.Tensor,
        aten.ge.Scalar,
    }
)


def takes_narrow_integers(node: fx.Node) -> bool:
    """Whether a call gives torch's results for int8, uint8 and int16 operands.

    Args:
        node: a call_function node with fake values in `meta["val"]`.
    """
    if node.target in CASTS or node.target in MOVES:
        return True
    if node.target not in _WITH_NUMBERS:
        return False
    dtypes = [dtype for dtype in _dtypes(node) if dtype in NARROW_DTYPES]
    bounds = [torch.iinfo(dtype) for dtype in dtypes]
    return all(
        isinstance(number, int) and limit.min <= number <= limit.max
        for number in _numbers(node)
        for limit in bounds
    )


def _dtypes(node: fx.Node) -> Iterator[torch.dtype]:
    for part in (*node.all_input_nodes, node):
        value = part.meta.get("val")
        if isinstance(value, torch.Tensor):
            yield value.dtype


def _numbers(node: fx.Node) -> Iterator[Any]:
    """The numbers that a call compares with or fills in."""
    arguments = bind_arguments(node)
    for name in ("other", "value"):
        number = arguments.get(name)
        if number is not None and not isinstance(number, fx.Node):
            yield number
