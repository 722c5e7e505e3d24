"""In which order the bytes of a tensor lie, so that a program reads and writes them in place.

A program's ports are contiguous. A tensor whose axes are permuted in memory (channels last, a
transposed result) is bound as its permutation instead of being copied.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["axis_order", "inverse_order", "is_dense"]


def axis_order(meta: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the axes from the slowest to the fastest, or None when that is their own order.

    Args:
        meta: a fake or real tensor; symbolic sizes are judged by their hints, so whoever binds
            checks again.
    """
    if meta.dim() < 2:
        return None
    strides = [_hint(stride) for stride in meta.stride()]
    sizes = [_hint(size) for size in meta.shape]
    if any(stride == 0 and size > 1 for stride, size in zip(strides, sizes, strict=True)):
        return None
    order = list(range(meta.dim()))
    # Axes of size 1 have any stride: they keep their place among the others.
    wide = [axis for axis in order if sizes[axis] != 1]
    by_stride = sorted(wide, key=lambda axis: -strides[axis])
    for place, axis in zip(wide, by_stride, strict=True):
        order[place] = axis
    return None if order == sorted(order) else tuple(order)


def inverse_order(order: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the permutation that undoes one."""
    return tuple(order.index(axis) for axis in range(len(order)))


def is_dense(meta: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its span of memory without gaps and without overlap."""
    order = axis_order(meta) or tuple(range(meta.dim()))
    expected = 1
    for axis in reversed(order):
        size = _hint(meta.shape[axis])
        if size != 1 and _hint(meta.stride()[axis]) != expected:
            return False
        expected *= size
    return True


def _hint(size: Any) -> int:
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else 2
