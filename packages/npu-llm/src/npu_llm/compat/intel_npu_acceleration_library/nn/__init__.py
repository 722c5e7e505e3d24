"""Layers and modules that run on the device, and functions on a graph's tensors."""

from typing import Any

from npu_llm.compat.absent import absent_name
from npu_llm.compat.intel_npu_acceleration_library.nn import functional
from npu_llm.compat.intel_npu_acceleration_library.nn.conv import Conv2d
from npu_llm.compat.intel_npu_acceleration_library.nn.functional import *  # noqa: F403
from npu_llm.compat.intel_npu_acceleration_library.nn.linear import Linear, QuantizedLinear
from npu_llm.compat.intel_npu_acceleration_library.nn.llm import PhiMLP
from npu_llm.compat.intel_npu_acceleration_library.nn.module import (
    Module,
    NPUModuleWrapper,
    convert_to_npu_module,
)

__all__ = [  # noqa: PLE0604  # all are texts
    "Conv2d",
    "Linear",
    "Module",
    "NPUModuleWrapper",
    "PhiMLP",
    "QuantizedLinear",
    "convert_to_npu_module",
    *functional.__all__,
]


def __getattr__(name: str) -> Any:
    raise absent_name(__name__, name)
