"""Layers and modules that run on the device, and functions on a graph's tensors."""

from typing import Any

from npu_llm.compat.alias import absent_name
from npu_llm.compat.intel_npu_acceleration_library.nn import functional
from npu_llm.compat.intel_npu_acceleration_library.nn.functional import *  # noqa: F403
from npu_llm.compat.intel_npu_acceleration_library.nn.layers import (
    Conv2d,
    Linear,
    Module,
    NPUModuleWrapper,
    QuantizedLinear,
    convert_to_npu_module,
)
from npu_llm.compat.intel_npu_acceleration_library.nn.llm import PhiMLP

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
