"""Attention on torch's tensors, as one program."""

from npu_llm.compat.intel_npu_acceleration_library.functional.scaled_dot_product_attention import (
    scaled_dot_product_attention,
)

__all__ = ["scaled_dot_product_attention"]
