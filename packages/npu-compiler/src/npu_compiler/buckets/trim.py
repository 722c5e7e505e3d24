"""Padding of a call's inputs, and the true part of its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
import torch

from npu_compiler.buckets.factors import Dims, is_padded
from npu_compiler.buckets.sizes import evaluate
from npu_compiler.graph.layout import axis_order, inverse_order, is_dense

__all__ = ["pad", "trim"]


def pad(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Returns a tensor with zeros behind its elements, in the memory order of the tensor.

    Args:
        tensor: of any sizes.
        sizes: at least the tensor's, dimension by dimension.
    """
    if tuple(tensor.shape) == tuple(sizes):
        return tensor
    order = axis_order(tensor) or tuple(range(tensor.dim()))
    made = torch.zeros([sizes[a] for a in order], dtype=tensor.dtype, device=tensor.device)
    made = made.permute(inverse_order(order))
    part = made
    for axis, size in enumerate(tensor.shape):
        part = part.narrow(axis, 0, size)
    part.copy_(tensor.detach())
    return made


def trim(tensor: torch.Tensor, dims: Dims, true: Mapping[sympy.Symbol, int]) -> torch.Tensor:
    """Returns the true values of a padded result.

    Args:
        tensor: of padded sizes.
        dims: where its true values are.
        true: the sizes of the call.
    """
    if not any(map(is_padded, dims)):
        return tensor
    factors = [factor for dim in dims for factor in dim]
    sizes = [int(evaluate(factor.true, true)) for factor in factors]
    if all(factor.size == size for factor, size in zip(factors, sizes, strict=True)):
        return tensor
    joined = any(len(dim) > 1 and is_padded(dim) for dim in dims)
    part = tensor
    if joined:
        part = part.reshape([factor.size for factor in factors])
        for axis, size in enumerate(sizes):
            part = part.narrow(axis, 0, size)
        shape = []
        rest = list(sizes)
        for dim in dims:
            own, rest = rest[: len(dim)], rest[len(dim) :]
            total = 1
            for size in own:
                total *= size
            shape.append(total)
        return part.reshape(shape)
    for axis, dim in enumerate(dims):
        if is_padded(dim):
            part = part.narrow(axis, 0, int(evaluate(dim[0].true, true)))
    return part if is_dense(part) else part.clone()
