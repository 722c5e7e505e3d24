"""Compatibility: runs programs written for other libraries under the original import names."""

from npu_llm.compat.alias import activate, is_active

__all__ = ["activate", "is_active"]
