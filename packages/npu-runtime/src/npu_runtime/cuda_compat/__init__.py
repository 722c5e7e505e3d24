"""Runs programs written for ``cuda`` unchanged on ``npu``; enabled by ``transfer_to_npu``."""

from npu_runtime.cuda_compat.activation import activate, deactivate, is_active, transferred

__all__ = ["activate", "deactivate", "is_active", "transferred"]
