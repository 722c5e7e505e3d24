"""Operators on numpy arrays: matrix products, MLP, convolution and attention on the device.

For programs without torch modules. Operators on tensors are torch's own, with device "npu".
"""

from .attention import SDPA, SimpleSDPA
from .convolution import Convolution
from .mlp import MLP
from .operator import Layer
from .products import Linear, MatMul, QLinear, QMatMul

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
