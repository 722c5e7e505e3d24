"""Operators on numpy arrays: matrix products, MLP, convolution and attention on the device.

For programs without torch modules. Operators on tensors are torch's own, with device "npu".
"""

from npu_ops.arrays.attention import SDPA, SimpleSDPA
from npu_ops.arrays.convolution import Convolution
from npu_ops.arrays.mlp import MLP
from npu_ops.arrays.operator import Layer
from npu_ops.arrays.products import Linear, MatMul, QLinear, QMatMul

__all__ = [
    "MLP",
    "SDPA",
    "Convolution",
    "Layer",
    "Linear",
    "MatMul",
    "QLinear",
    "QMatMul",
    "SimpleSDPA",
]
