"""DLPack for npu tensors: which device ``__dlpack_device__`` names.

The capsules themselves are torch's. Views for libraries that know no npu, numpy among them, are
``torch.npu.as_cpu``.
"""

from enum import IntEnum

import torch
from torch.utils.dlpack import DLDeviceType

__all__ = ["register_dlpack_device"]

_torch_dlpack_device = torch.Tensor.__dlpack_device__


def register_dlpack_device() -> None:
    """Puts our answer in front of torch's."""
    torch.Tensor.__dlpack_device__ = _dlpack_device  # type: ignore[method-assign]


def _dlpack_device(self: torch.Tensor) -> tuple[IntEnum, int]:
    """Device of a tensor in DLPack's terms.

    npu is DLPack's extension device: torch asks for one named "privateuse1" (torch 2.13), which no
    renamed device is. Pinned tensors are plain CPU memory here, not memory pinned for CUDA.
    """
    if type(self) is torch.Tensor or type(self) is torch.nn.Parameter:
        if self.device.type == "npu":
            return DLDeviceType.kDLExtDev, self.device.index
        if self.device.type == "cpu":
            return DLDeviceType.kDLCPU, 0
    return _torch_dlpack_device(self)
