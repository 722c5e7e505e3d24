"""What a graph is given: arrays fitted to its inputs, and integers with their scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from npu_llm.errors import OptionError

__all__ = ["GraphInput", "fitted", "flattened", "unpacked"]

_BYTES = (torch.uint8, torch.int8)


@dataclass(frozen=True)
class GraphInput:
    """An input of a graph.

    Attributes:
        shape: what the program reads.
        dtype: what the program reads.
        is_packed: whether each byte holds two numbers of 4 bits.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_packed: bool = False


def flattened(given: Sequence[Any], inputs: Sequence[GraphInput]) -> list[torch.Tensor]:
    """Returns one tensor per array, out of nested lists; what is None is passed over.

    A pair of integers and scales stays two where the graph's next input takes integers, and is
    multiplied out for one that takes floats.

    Raises:
        OptionError: [graph-array] for what is no array.
    """
    found: list[torch.Tensor] = []

    def add(value: Any) -> None:
        if value is None:
            return
        if not isinstance(value, list | tuple):
            found.append(_tensor(value))
            return
        parts = [_tensor(part) for part in value] if _is_pair(value) else None
        at = inputs[len(found)] if len(found) < len(inputs) else None
        is_quantized = parts is not None and parts[0].dtype in _BYTES
        if parts is not None and is_quantized and at is not None and at.dtype.is_floating_point:
            integers = unpacked(parts[0]) if parts[0].dtype is torch.uint8 else parts[0]
            found.append((integers.to(torch.float32) * parts[1].float()).to(at.dtype))
            return
        for part in value:
            add(part)

    add(list(given))
    return found


def fitted(tensor: torch.Tensor, at: GraphInput, *, place: int) -> torch.Tensor:
    """Returns a tensor as an input reads it: floats cast, axes of one element added or removed.

    Raises:
        OptionError: [graph-array] for another shape, or integers where floats belong.
    """
    if at.is_packed and tensor.dtype in _BYTES and tensor.numel() == at.shape[0]:
        return tensor.contiguous().view(torch.uint8).reshape(-1)
    is_same = tensor.dtype is at.dtype
    is_float = tensor.dtype.is_floating_point and at.dtype.is_floating_point
    if _plain(tensor.shape) == _plain(at.shape) and (is_same or is_float) and not at.is_packed:
        return tensor.reshape(at.shape).to(at.dtype).contiguous()
    wanted = f"{at.shape[0]} bytes of packed 4-bit numbers" if at.is_packed else f"{at.shape}"
    raise OptionError(
        f"NNFactory.run: input {place} must be {wanted}, {at.dtype}; got {tuple(tensor.shape)}, "
        f"{tensor.dtype}. Pass it in that shape and dtype.",
        code="graph-array",
    )


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """Returns numbers of 4 bits in two's complement as int8, of which each byte holds two.

    Args:
        packed: (..., n) uint8, the first number in a byte's low half.

    Returns:
        (..., 2 * n), int8.
    """
    both = packed.to(torch.float32)
    high = torch.floor(both / 16)
    halves = torch.stack([both - 16 * high, high], -1).flatten(-2)
    return (halves - 16 * (halves > 7).to(torch.float32)).to(torch.int8)


def _is_pair(value: Sequence[Any]) -> bool:
    return len(value) == 2 and all(isinstance(x, np.ndarray | torch.Tensor) for x in value)


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    try:
        return torch.from_numpy(np.require(value, requirements=["C", "W"]))
    except (TypeError, ValueError) as failure:
        raise OptionError(
            f"NNFactory.run: an input must be an array or a tensor; got {value!r:.60}. Pass "
            "numbers in an array.",
            code="graph-array",
        ) from failure


def _plain(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]
