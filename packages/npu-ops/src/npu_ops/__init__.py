"""PyTorch operators on device "npu"; importing this package registers them.

The device, its memory and its random numbers are in `npu_runtime`; compiled graphs are in
`npu_compiler`.
"""

import torch  # noqa: F401  (libtorch must be loaded before _C)

import npu_runtime  # noqa: F401  (renames the device and loads libnpu_runtime.so)

from . import _C  # noqa: F401  (registers the kernels)
from .report import fallback_report, reset_fallback_report

__all__ = ["fallback_report", "reset_fallback_report"]
