"""PyTorch operators on device "npu"; importing this package registers them.

The device, its memory and its random numbers are in `npu_runtime`; compiled graphs are in
`npu_compiler`.
"""

from typing import TYPE_CHECKING, Any

import npu_runtime  # noqa: F401  (renames the device and loads libnpu_runtime.so)
from npu_command.import_hooks import lazy_names, start

if TYPE_CHECKING:
    from npu_ops import debugging, fused, sparse_attention, variants
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
    from npu_ops.fallback import fallback_report, reset_fallback_report, set_fallback_policy
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

_ARRAYS = (
    "MLP", "SDPA", "Convolution", "Linear", "MatMul", "QLinear", "QMatMul", "SimpleSDPA",
)  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    dict.fromkeys(_ARRAYS, "arrays")
    | dict.fromkeys(("fallback_report", "reset_fallback_report", "set_fallback_policy"), "fallback")
    | dict.fromkeys(("VerificationReport", "verify_correctness"), "verification")
    | dict.fromkeys(("debugging", "fused", "sparse_attention", "variants")),
)


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
        refuse_device(error)  # not raised: importing torch imports this package, and must work
        return
    # Starts only if `npu-ops monitor` runs this process.
    directory = read_memory_directory()
    if directory is not None:
        from npu_ops.memory_account import keep_account

        keep_account(directory)


def _start() -> None:
    import torch  # noqa: F401  (libtorch must be loaded before _C)

    from npu_ops import (
        _C,  # registers the kernels
        fake_convolution,
        fallback,  # noqa: F401  # registers the rule for host kernels
        fused,  # noqa: F401
        sparse_attention,  # noqa: F401
    )

    _C.set_deciders(_resolve, _choose)
    fake_convolution.register()
    _apply_settings()


start(_start)
