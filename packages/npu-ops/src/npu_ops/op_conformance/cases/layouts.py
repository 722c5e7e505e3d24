"""How the tensors of a case lie in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["LAYOUTS", "has_effect", "lay_out", "restride"]


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype)
    every_other = wide[..., ::2]
    return every_other.copy_(tensor)


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def _offset(tensor: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)
    return buffer[3:].view(tensor.shape).copy_(tensor)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    memory_format = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.contiguous(memory_format=memory_format)


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1].clone().expand(tensor.shape)


# Layout -> (which shapes it changes, how).
LAYOUTS: dict[str, tuple[Callable[[tuple[int, ...]], bool], Callable[..., torch.Tensor]]] = {
    "contiguous": (lambda _: True, lambda tensor: tensor),
    "strided": (lambda shape: len(shape) > 0 and 0 not in shape, _strided),
    "transposed": (lambda shape: len(shape) > 1 and 0 not in shape, _transposed),
    "offset": (lambda shape: 0 not in shape, _offset),
    "channels_last": (lambda shape: len(shape) in (4, 5) and 0 not in shape, _channels_last),
    "expanded": (lambda shape: len(shape) > 0 and 0 not in shape and shape[0] > 1, _expanded),
}


def has_effect(layout: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of a shape lies otherwise in a layout than contiguous."""
    return LAYOUTS[layout][0](shape)


def lay_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The tensor in a layout, or as it is where the layout means nothing for its shape."""
    applies, arrange = LAYOUTS[layout]
    return arrange(tensor) if applies(tuple(tensor.shape)) else tensor


def restride(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The values in memory of given strides; those that overlap get what was written last."""
    if tensor.numel() == 0:
        return tensor
    steps = zip(tensor.shape, strides, strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    there = torch.zeros(last + 1, dtype=tensor.dtype).as_strided(tensor.shape, strides)
    if 0 in strides:  # expanded: copy_ refuses to write one element many times
        first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
        there[first].copy_(tensor[first])
        return there
    return there.copy_(tensor)
