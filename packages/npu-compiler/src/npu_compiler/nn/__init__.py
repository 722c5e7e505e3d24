"""Layers that run as programs of the device, with weights kept as torch keeps them."""

from npu_compiler.nn.layers import Conv2d, Linear
from npu_compiler.nn.module import Module, NPUModuleWrapper, convert_to_npu_module
from npu_compiler.nn.quantized_linear import QuantizedLinear

__all__ = [
    "Conv2d",
    "Linear",
    "Module",
    "NPUModuleWrapper",
    "QuantizedLinear",
    "convert_to_npu_module",
]
