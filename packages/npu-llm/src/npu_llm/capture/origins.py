"""Makes a capture record for each call in which of the model's modules it is made.

The records are those that torch's own tracers leave, and that npu_compiler.lowering.node_origins
reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import traceback

__all__ = ["noted_modules"]

_KEY = "nn_module_stack"


@contextmanager
def noted_modules(model: torch.nn.Module) -> Iterator[None]:
    """Gives nodes that are traced inside the block the path of the module that is running.

    Args:
        model: the root of the paths.
    """
    outer: list[Any] = []

    def hooks(path: str) -> tuple[Any, Any]:
        def enter(module: torch.nn.Module, _: Any) -> None:
            stack = traceback.current_meta.get(_KEY)
            outer.append(stack)
            traceback.current_meta[_KEY] = {**(stack or {}), path: (path, type(module))}

        def leave(*_: Any) -> None:
            traceback.current_meta[_KEY] = outer.pop()

        return enter, leave

    handles = []
    for path, module in model.named_modules():
        enter, leave = hooks(path)
        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        with traceback.preserve_node_meta():
            yield
    finally:
        for handle in handles:
            handle.remove()
