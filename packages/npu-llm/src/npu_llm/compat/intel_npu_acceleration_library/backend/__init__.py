"""Graphs, operators on arrays and products on tensors, under that library's names."""

from typing import Any

from npu_llm.compat.alias import absent_name
from npu_llm.compat.intel_npu_acceleration_library.backend.factory import NNFactory
from npu_llm.compat.intel_npu_acceleration_library.backend.operators import (
    MLP,
    SDPA,
    Convolution,
    Linear,
    MatMul,
    QLinear,
    QMatMul,
    SimpleSDPA,
)
from npu_llm.compat.intel_npu_acceleration_library.backend.runtime import (
    clear_cache,
    get_driver_version,
    npu_available,
    run_factory,
    run_matmul,
)
from npu_llm.compat.intel_npu_acceleration_library.backend.tensor import Tensor

__all__ = [
    "MLP",
    "SDPA",
    "Convolution",
    "Linear",
    "MatMul",
    "NNFactory",
    "QLinear",
    "QMatMul",
    "SimpleSDPA",
    "Tensor",
    "clear_cache",
    "get_driver_version",
    "npu_available",
    "run_factory",
    "run_matmul",
]


def __getattr__(name: str) -> Any:
    raise absent_name(__name__, name)
