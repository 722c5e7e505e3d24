"""The operators `add_custom` and `write_ring`: on npu and cpu, eagerly and in torch.compile.

Schemas and kernels are in csrc; how a graph with them becomes a program is in converter.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import npu_ops  # noqa: F401  (brings the device; the kernel is linked to its library)

__all__ = ["add_custom", "write_ring"]

# An editable install has the library in another folder than this file.
_LIBRARY = next(file for folder in __path__ if (file := Path(folder, "libkernels.so")).exists())
torch.ops.load_library(_LIBRARY)


def add_custom(x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """Returns `x + alpha * y`.

    Args:
        x: any shape; float16, bfloat16, float32 or float64; on npu or cpu.
        y: of the shape, dtype and device of `x`.
        alpha: factor of `y`.

    Raises:
        ValueError: `x` is of another dtype, or `y` is not as `x`.
    """
    return torch.ops.add_custom.add_custom(x, y, alpha)


def write_ring(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> None:
    """Writes `cache[(start + i) % slots] = rows[i]` for each row, in place.

    Args:
        cache: (slots, width), contiguous; any dtype; on npu or cpu.
        rows: (count, width), of the dtype and device of `cache`, at most one for each slot.
        start: one int64 number on that device, also negative.

    Raises:
        ValueError: `cache`, `rows` or `start` is not so, or `rows` shares memory with `cache`.
    """
    torch.ops.add_custom.write_ring(cache, rows, start)


# --8<-- [start:fake]
@torch.library.register_fake("add_custom::add_custom")
def _fake(x: torch.Tensor, y: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """Shape, dtype and device of the result, for tensors that have no memory."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# --8<-- [end:fake]


# --8<-- [start:autograd]
def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, _, ctx.alpha = inputs


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    return gradient, gradient * ctx.alpha, None


torch.library.register_autograd("add_custom::add_custom", _backward, setup_context=_remember)
# --8<-- [end:autograd]


# --8<-- [start:ring_fake]
@torch.library.register_fake("add_custom::write_ring")
def _fake_write(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> None:
    """Nothing is returned, so there is nothing to shape."""


# --8<-- [end:ring_fake]
