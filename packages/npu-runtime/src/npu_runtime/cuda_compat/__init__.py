"""Programs written for ``cuda`` run on ``npu`` unchanged; ``transfer_to_npu`` switches it on."""

from npu_runtime.cuda_compat.activation import activate, deactivate, is_active, transferred

__all__ = ["activate", "deactivate", "is_active", "transferred"]
