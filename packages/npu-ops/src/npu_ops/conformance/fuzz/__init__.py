"""Calls nobody would write, of every aten op, on npu and on the CPU: no signal, and the same end.

``python -m npu_ops.conformance.fuzz`` runs it; it needs hypothesis, which npu-ops itself does not.
Whether ops compute right for arguments that make sense is the question of the package around it.
"""

from npu_ops.conformance.fuzz.call import Call, TensorSpec
from npu_ops.conformance.fuzz.exclusions import EXCLUDED

__all__ = ["EXCLUDED", "Call", "TensorSpec"]
