"""Which body serves an op: a program for the device, or the host kernel, decided per signature.

The call itself is native (csrc/variants).
"""

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
