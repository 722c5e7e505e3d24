"""Programs written for other libraries run here under the names that they import."""

from npu_llm.compat.alias import activate, is_active

__all__ = ["activate", "is_active"]
