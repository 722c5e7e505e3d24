"""What `.to("npu")` means to programs of that library: modules run programs, tensors stay.

There `npu` was no device of torch's: tensors stayed on the host, and a module that was moved was
wrapped so that its calls ran on the NPU. Calls from our own packages, and from torch's own code,
keep torch's meaning.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.backends import registry

from npu_llm.compat.intel_npu_acceleration_library.compiler import npu
from npu_llm.compat.intel_npu_acceleration_library.conventions import warn_once
from npu_llm.compat.intel_npu_acceleration_library.nn.module import Module, convert_to_npu_module

__all__ = ["enable_npu_device"]

_OURS = frozenset(
    ("npu_command", "npu_compiler", "npu_llm", "npu_ops", "npu_profiler", "npu_runtime", "torch")
)


@functools.cache
def enable_npu_device() -> None:
    """Gives `.to("npu")`, and torch.compile's backend "npu", that library's meaning here."""
    # Dynamo follows our functions into the real ones, which it lists once.
    trace_rules.get_torch_obj_rule_map()
    trace_rules.get_tensor_method()
    if "npu" not in registry._COMPILER_FNS:  # a program that compiled before keeps what it used
        registry.register_backend(compiler_fn=npu, name="npu")
    torch.Tensor.to = _tensor_to(torch.Tensor.to)  # type: ignore[method-assign]
    torch.nn.Module.to = _module_to(torch.nn.Module.to)  # type: ignore[method-assign]


def _tensor_to(real: Any) -> Any:
    @functools.wraps(real)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not _name_npu(args, kwargs) or _is_ours(sys._getframe(1)):
            moved: torch.Tensor = real(self, *args, **kwargs)
            return moved
        if any(isinstance(value, str) for value in (*args, kwargs.get("device"))):
            warn_once("tensor-to")  # a device object is mostly a model's own
        args, kwargs = _without_npu(args, kwargs)
        kept: torch.Tensor = real(self, *args, **kwargs) if args or kwargs else self
        return kept

    return to


def _module_to(real: Any) -> Any:
    @functools.wraps(real)
    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        if not _name_npu(args, kwargs) or _is_ours(sys._getframe(1)):
            moved: torch.nn.Module = real(self, *args, **kwargs)
            return moved
        args, kwargs = _without_npu(args, kwargs)
        if args or kwargs:
            real(self, *args, **kwargs)
        return self if isinstance(self, Module) else convert_to_npu_module(self)

    return to


def _name_npu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(map(_is_npu, args)) or ("device" in kwargs and _is_npu(kwargs["device"]))


def _is_npu(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower().partition(":")[0] == "npu"
    return isinstance(value, torch.device) and value.type == "npu"


def _without_npu(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    kept = {name: value for name, value in kwargs.items() if not _is_npu(value)}
    return tuple(value for value in args if not _is_npu(value)), kept


def _is_ours(frame: Any) -> bool:
    """Whether the caller is one of our packages, or torch: neither is the program."""
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in _OURS
