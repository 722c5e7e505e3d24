"""Importing this module makes programs written for ``cuda`` run on ``npu``, for the whole process.

Put ``import npu_runtime.transfer_to_npu`` before the program's own code. The changes, and the way
to undo them, are in npu_runtime/cuda_compat.
"""

from npu_runtime.cuda_compat import activate, deactivate, is_active

__all__ = ["activate", "deactivate", "is_active"]

activate()
