"""Registers the device with torch: its name, ``torch.npu``, methods, DLPack, processes, dynamo.

Runs once, on import, without opening a device. The native half registers itself when the library
loads. DLPack's capsules are torch's, and views for libraries without npu are ``torch.npu.as_cpu``.
"""

import atexit
import importlib
import sys
from enum import IntEnum
from types import ModuleType

import torch
import torch.utils.backend_registration as backend_registration
from torch.utils.dlpack import DLDeviceType

from npu_command.import_hooks import when_imported
from npu_runtime import _C, npu
from npu_runtime.config import config, problem
from npu_runtime.library_patches import hooks
from npu_runtime.plugins import find_vendor_drivers, install_observers, openvino_library
from npu_runtime.refusal import refuse_device
from npu_runtime.startup.memory_check import install_memory_check, install_oom_snapshot
from npu_runtime.torch_integration import distributed
from npu_runtime.torch_integration.flex_attention import serve_flex_attention
from npu_runtime.torch_integration.processes import register_reducers
from npu_runtime.torch_integration.profiler_tables import name_npu_columns

__all__: list[str] = []

_torch_dlpack_device = torch.Tensor.__dlpack_device__


def _register_dlpack_device() -> None:
    """Puts our handler before torch's."""
    torch.Tensor.__dlpack_device__ = _dlpack_device  # type: ignore[method-assign]


def _dlpack_device(self: torch.Tensor) -> tuple[IntEnum, int]:
    """Returns the DLPack device of a tensor.

    npu is DLPack's extension device. Torch 2.13 expects the name "privateuse1", which a renamed
    device does not have. Pinned tensors are plain CPU memory here, not memory pinned for CUDA.
    """
    if type(self) is torch.Tensor or type(self) is torch.nn.Parameter:
        if self.device.type == "npu":
            return DLDeviceType.kDLExtDev, self.device.index
        if self.device.type == "cpu":
            return DLDeviceType.kDLCPU, 0
    return _torch_dlpack_device(self)


def _register_module() -> None:
    """Registers ``torch.npu``, and makes ``import torch.npu.amp`` find its submodules."""
    torch._register_device_module("npu", npu)  # type: ignore[no-untyped-call]
    for name, value in vars(npu).items():
        if isinstance(value, ModuleType) and value.__name__ == f"{npu.__name__}.{name}":
            sys.modules[f"torch.npu.{name}"] = value


def _register_with_dynamo() -> None:
    importlib.import_module("npu_runtime.startup.dynamo_interface")


def _register() -> None:
    _C.configure(
        config.driver,
        config.device,
        openvino_library(),
        find_vendor_drivers,
        config.launch_blocking,
    )
    if problem is not None:
        refuse_device(problem)
    if config.sanitizer:
        _C.set_sanitizer(True)
    backend_registration.rename_privateuse1_backend("npu")
    _register_module()
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    distributed.register()
    _register_dlpack_device()
    register_reducers()
    name_npu_columns()
    when_imported("torch._dynamo.device_interface", _register_with_dynamo)
    when_imported("torch.distributed.device_mesh", distributed.share_devices)
    when_imported("torch.nn.attention.flex_attention", serve_flex_attention)
    hooks.install(hugging_face=config.hugging_face)
    atexit.register(_C.stop_autograd_threads)
    if config.memory_check:
        install_memory_check()
    if config.oom_snapshot:
        install_oom_snapshot(config.oom_snapshot)
    atexit.register(_end_profile)
    atexit.register(_finish)
    if config.attach:
        install_observers()


def _end_profile() -> None:
    """Ends a window of torch's profiler that is still open.

    Torch 2.13 would free it after the objects it refers to, and crash.
    """
    if torch._C._autograd._profiler_enabled():
        torch._C._autograd._disable_profiler()


def _finish() -> None:
    """Waits for enqueued work while Python is intact; errors not raised so far are dropped."""
    if _C.is_open() and not _C.is_in_bad_fork():
        _C.drain()


_register()
