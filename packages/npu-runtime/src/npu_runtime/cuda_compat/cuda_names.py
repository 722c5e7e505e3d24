"""What ``torch.cuda`` offers while it means npu.

Names of ``torch.npu`` under the same name, but for those whose values would mislead a program that
reads them as CUDA's.
"""

import importlib
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import torch

from npu_runtime import npu
from npu_runtime.cuda_compat.device_arguments import device_arguments, device_name
from npu_runtime.cuda_compat.patches import Patches
from npu_runtime.npu.device import DeviceLike, DeviceProperties

__all__ = ["patch_cuda"]

# Programs ask for 8.0 to know about bfloat16, and for 8.9 or 9.0 to know about FP8, which is not
# here.
_CAPABILITY = (8, 0)
_SUBMODULES = ("amp", "graphs", "memory", "nvtx", "random", "streams")


@dataclass(frozen=True)
class CudaDeviceProperties(DeviceProperties):
    """Properties of an npu device with the fields that programs for CUDA read.

    Attributes:
        major: first number of the compute capability.
        minor: second number of the compute capability.
        multi_processor_count: 1: a device is not divided for its users.
    """

    major: int = _CAPABILITY[0]
    minor: int = _CAPABILITY[1]
    multi_processor_count: int = 1


def patch_cuda(patches: Patches) -> None:
    """Makes the names of torch.cuda, and of the modules below it, npu's."""
    renamed: dict[str, Any] = {
        "get_device_capability": _get_device_capability,
        "get_device_properties": _get_device_properties,
        "_lazy_init": npu._lazy_init,
        "_is_in_bad_fork": npu._is_in_bad_fork,
        "_lazy_call": lambda function, **kwargs: function(),
    }
    _patch_module(patches, torch.cuda, npu, renamed | {"CUDAGraph": npu.NPUGraph})
    # Not public there either, and in every recipe about memory.
    recorders = ("_dump_snapshot", "_record_memory_history", "_snapshot")
    below: dict[str, dict[str, Any]] = {
        "graphs": {"CUDAGraph": npu.NPUGraph},
        "memory": {name: _reading_devices(getattr(npu.memory, name)) for name in recorders},
    }
    for name in _SUBMODULES:
        theirs = importlib.import_module(f"torch.cuda.{name}")
        _patch_module(patches, theirs, getattr(npu, name), below.get(name, {}))


def _patch_module(
    patches: Patches, theirs: ModuleType, ours: ModuleType, renamed: dict[str, Any]
) -> None:
    for name in getattr(ours, "__all__", ()):
        # Names that are made when they are asked for would open the device now.
        if name in vars(ours) and hasattr(theirs, name) and name not in (*_SUBMODULES, *renamed):
            patches.set(theirs, name, _reading_devices(getattr(ours, name)))
    for name, value in renamed.items():
        patches.set(theirs, name, value)


def _reading_devices(value: Any) -> Any:
    """Functions take "cuda:0" for a device; classes and constants stay themselves."""
    is_function = callable(value) and not isinstance(value, type)
    return device_arguments(value) if is_function else value


def _get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    npu.get_device_properties(device_name(device))  # refuses a device that is not there
    return _CAPABILITY


def _get_device_properties(device: DeviceLike = None) -> CudaDeviceProperties:
    return CudaDeviceProperties(**asdict(npu.get_device_properties(device_name(device))))
