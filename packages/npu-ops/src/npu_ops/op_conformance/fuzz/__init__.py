"""Fuzzer of aten ops: compares random calls on npu and on the CPU, and detects crashes.

Run it with ``python -m npu_ops.op_conformance.fuzz``. It needs hypothesis, which is not a
dependency of npu-ops.
"""

from npu_ops.op_conformance.fuzz.call import EXCLUDED, Call, TensorSpec

__all__ = ["EXCLUDED", "Call", "TensorSpec"]
