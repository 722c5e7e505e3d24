"""Runs a loop that Inductor compiled for the host on npu tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from npu_runtime.npu import as_cpu

__all__ = ["on_host"]


def on_host(kernel: Callable[..., Any], *args: Any) -> Any:
    """Calls a compiled loop; npu tensors become views of their memory, which wait for the device.

    Args:
        kernel: takes tensors' addresses and numbers.
        args: tensors on npu or cpu, and numbers.
    """
    return kernel(
        *[
            as_cpu(arg) if isinstance(arg, torch.Tensor) and arg.device.type == "npu" else arg
            for arg in args
        ]
    )
