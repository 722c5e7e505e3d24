"""Ops without arithmetic: casts and moves of elements."""

from __future__ import annotations

import torch

__all__ = ["CASTS", "MOVES"]

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
