"""Graphs, operators on arrays and products on tensors, by that library's names."""

from typing import Any

from npu_llm.compat.alias import without_bindings
from npu_llm.compat.intel_npu_acceleration_library.backend.convolution import Convolution
from npu_llm.compat.intel_npu_acceleration_library.backend.driver import (
    get_driver_version,
    npu_available,
)
from npu_llm.compat.intel_npu_acceleration_library.backend.factory import NNFactory
from npu_llm.compat.intel_npu_acceleration_library.backend.matmul import Linear, MatMul
from npu_llm.compat.intel_npu_acceleration_library.backend.mlp import MLP
from npu_llm.compat.intel_npu_acceleration_library.backend.qmatmul import QLinear, QMatMul
from npu_llm.compat.intel_npu_acceleration_library.backend.runtime import (
    clear_cache,
    run_factory,
    run_matmul,
)
from npu_llm.compat.intel_npu_acceleration_library.backend.sdpa import SDPA, SimpleSDPA
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
    if name == "lib":
        raise without_bindings("backend.lib")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
