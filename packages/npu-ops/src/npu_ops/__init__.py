"""PyTorch operators on device "npu"; importing this package registers them.

The device, its memory and its random numbers are in `npu_runtime`; compiled graphs are in
`npu_compiler`.
"""

from typing import TYPE_CHECKING, Any

import torch  # noqa: F401  (libtorch must be loaded before _C)

import npu_runtime  # noqa: F401  (renames the device and loads libnpu_runtime.so)
from npu_ops import (
    _C,  # registers the kernels
    fake_convolution,
    fused,
    sparse_attention,
)
from npu_ops.fallback import fallback_report, reset_fallback_report, set_fallback_policy

if TYPE_CHECKING:
    from npu_ops import debugging, variants
    from npu_ops.arrays import (
        MLP,
        SDPA,
        Convolution,
        Linear,
        MatMul,
        QLinear,
        QMatMul,
        SimpleSDPA,
    )
    from npu_ops.verification import VerificationReport, verify_correctness

__all__ = [
    "MLP",
    "SDPA",
    "Convolution",
    "Linear",
    "MatMul",
    "QLinear",
    "QMatMul",
    "SimpleSDPA",
    "VerificationReport",
    "debugging",
    "fallback_report",
    "fused",
    "reset_fallback_report",
    "set_fallback_policy",
    "sparse_attention",
    "variants",
    "verify_correctness",
]

# Name -> module, for what `import torch` does not need.
_HOMES = {
    "MLP": "arrays",
    "SDPA": "arrays",
    "Convolution": "arrays",
    "Linear": "arrays",
    "MatMul": "arrays",
    "QLinear": "arrays",
    "QMatMul": "arrays",
    "SimpleSDPA": "arrays",
    "VerificationReport": "verification",
    "verify_correctness": "verification",
}


def __getattr__(name: str) -> Any:
    # Late, because this package is imported with torch, and the parts import torch.testing, numpy
    # and openvino.
    import importlib

    if name in ("debugging", "variants"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def _resolve() -> None:
    from npu_ops.variants.autotune import autotuner

    autotuner().resolve()


def _choose(*call: Any) -> Any:
    from npu_ops.variants.autotune import autotuner

    return autotuner().choose(*call)


def _apply_settings() -> None:
    from npu_ops.config import read_memory_directory, wrong_setting
    from npu_runtime.refusal import refuse_device

    error = wrong_setting()
    if error is not None:
        refuse_device(error)  # not raised: importing torch imports this, and must work
        return
    # Nothing is started unless `npu-ops monitor` runs this process and asks for it.
    directory = read_memory_directory()
    if directory is not None:
        from npu_ops.memory_account import keep_account

        keep_account(directory)


_C.set_deciders(_resolve, _choose)
fake_convolution.register()
_apply_settings()
