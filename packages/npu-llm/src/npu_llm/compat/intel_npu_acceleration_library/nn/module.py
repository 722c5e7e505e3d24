"""Modules that run programs once they are moved to `npu`, and NPUContextManager."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch

import npu_compiler.nn
from npu_llm.compat.intel_npu_acceleration_library.backend import NNFactory
from npu_llm.compat.intel_npu_acceleration_library.backend import Tensor as FactoryTensor

__all__ = ["Module", "NPUContextManager", "NPUModuleWrapper", "convert_to_npu_module"]


class Module(npu_compiler.nn.Module):
    """A module whose calls run programs, without gradients but in training mode.

    Args:
        profile: accepted; `npu-profiler trace` is what measures here.
    """

    def __init__(self, profile: bool = False) -> None:
        super().__init__()
        self.profile = profile

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        if self.training or torch.compiler.is_compiling():
            return super().__call__(*args, **kwargs)
        with torch.no_grad():
            return super().__call__(*args, **kwargs)


class NPUModuleWrapper(npu_compiler.nn.NPUModuleWrapper, Module):
    """Another module as one that runs programs; see npu_compiler.nn.NPUModuleWrapper."""


def convert_to_npu_module(module: torch.nn.Module) -> NPUModuleWrapper:
    """Returns a module that runs programs, in evaluation mode, with the names of the given one."""
    wrapped = NPUModuleWrapper(module)
    wrapped.eval()
    return wrapped


class NPUContextManager(NNFactory):
    """A graph built in a `with` block, which is compiled where the block ends."""

    def __enter__(self) -> Self:
        """Returns the graph."""
        return self

    def Tensor(self, shape: Sequence[int], dtype: Any = torch.float16) -> FactoryTensor:
        """Adds an input."""
        return self.parameter(shape, dtype=dtype)

    def Constant(self, tensor: torch.Tensor) -> FactoryTensor:
        """Adds a constant."""
        added: FactoryTensor = self.constant(tensor)
        return added

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Compiles the graph, unless an error ended the block."""
        if kind is None:
            self.compile()
