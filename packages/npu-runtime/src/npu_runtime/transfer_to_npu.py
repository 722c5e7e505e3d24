"""Importing this module makes programs written for ``cuda`` run on ``npu``, for the whole process.

``import npu_runtime.transfer_to_npu`` stands before the program's own code. What changes, and how
to take it back, is in npu_runtime/cuda_compat.
"""

from npu_runtime.cuda_compat import activate, deactivate, is_active

__all__ = ["activate", "deactivate", "is_active"]

activate()
