"""Modules that compile themselves at their first call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from npu_compiler.options import CompilerConfig
from npu_compiler.torch_compile.in_place import compile_following
from npu_runtime.public_calls import public_call

__all__ = ["Module", "NPUModuleWrapper", "convert_to_npu_module"]


class Module(nn.Module):
    """A module whose calls run programs; write forward as for torch.nn.Module.

    Grad mode decides as under torch.compile: with gradients there are forward and backward
    programs, without them the weights are built in. Inside another compiled module it is a part of
    that one's graph.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module, which is compiled before its first call."""
        # A copy or an unpickled module has no compiled call yet.
        if self._compiled_call_impl is None and not torch.compiler.is_compiling():
            compile_following(self, CompilerConfig())
        return super().__call__(*args, **kwargs)


class NPUModuleWrapper(Module):
    """Another module as one that runs programs.

    It has the same parameters, buffers and children under the same names, so that its state_dict
    is the module's.
    """

    module: nn.Module

    @public_call
    def __init__(self, module: nn.Module) -> None:
        """Wraps a module.

        Args:
            module: any; what is changed in it is changed here.
        """
        super().__init__()
        self._share(module)

    def _share(self, module: nn.Module) -> None:
        # Past nn.Module's own assignment, which would make it a child and prefix all names.
        own = self.__dict__
        own["module"] = module
        for registry in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[registry] = module.__dict__[registry]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._share(self.module)

    def train(self, mode: bool = True) -> NPUModuleWrapper:
        """Sets training or evaluation mode of the module."""
        self.module.train(mode)
        return super().train(mode)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        return self.module(*args, **kwargs)


@public_call
def convert_to_npu_module(module: nn.Module) -> NPUModuleWrapper:
    """Returns a module that runs programs, in evaluation mode, with the names of the given one."""
    wrapped = NPUModuleWrapper(module)
    wrapped.eval()
    return wrapped
