"""Fuzzer of aten ops: random calls on npu and on the CPU must end alike, and never in a signal.

Run it with ``python -m npu_ops.op_conformance.fuzz``. It needs hypothesis, which npu-ops does not.
"""

from npu_ops.op_conformance.fuzz.call import EXCLUDED, Call, TensorSpec

__all__ = ["EXCLUDED", "Call", "TensorSpec"]
