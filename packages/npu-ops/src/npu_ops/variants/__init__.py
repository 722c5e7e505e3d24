"""Variants of ops: a program for the device or the host kernel, chosen per signature.

The call itself is native (csrc/variants).
"""

from typing import TYPE_CHECKING

from npu_command.import_hooks import lazy_names

if TYPE_CHECKING:
    from npu_ops.variants.autotune import Choice, choices, host_kernels, set_variant_policy
    from npu_ops.variants.call import OpCall, OpProgram, TensorSpec

__all__ = [
    "Choice",
    "OpCall",
    "OpProgram",
    "TensorSpec",
    "choices",
    "host_kernels",
    "set_variant_policy",
]

_HOMES = {
    "Choice": "autotune",
    "choices": "autotune",
    "host_kernels": "autotune",
    "set_variant_policy": "autotune",
    "OpCall": "call",
    "OpProgram": "call",
    "TensorSpec": "call",
}

__getattr__ = lazy_names(__name__, _HOMES)
