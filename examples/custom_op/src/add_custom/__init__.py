"""The operator `add_custom`: on npu and cpu, with gradients, eagerly and in torch.compile.

Schema and kernel are in csrc; how a graph with the op becomes a program is in converter.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import npu_ops  # noqa: F401  (brings the device, to whose library the kernel is linked)

__all__ = ["add_custom"]

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
