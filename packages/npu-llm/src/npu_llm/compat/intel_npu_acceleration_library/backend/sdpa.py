"""Attention in float16, with a mask or without one."""

from __future__ import annotations

from collections.abc import Sequence

from npu_llm.compat.intel_npu_acceleration_library.backend.factory import NNFactory

__all__ = ["SDPA", "SimpleSDPA"]


class SDPA(NNFactory):
    """Attention with a mask, which does not count under is_causal."""

    def __init__(
        self,
        query_shapes: Sequence[int],
        key_shapes: Sequence[int],
        value_shapes: Sequence[int],
        mask_shapes: Sequence[int],
        is_causal: bool = False,
        profile: bool = False,
        device: str = "NPU",
    ) -> None:
        """Builds the graph.

        Args:
            query_shapes: (batch, heads, queries, d).
            key_shapes: (batch, heads, keys, d).
            value_shapes: (batch, heads, keys, dv).
            mask_shapes: what broadcasts to (batch, heads, queries, keys); added to the scores.
            is_causal: whether query i sees keys 0 to i alone.
            profile: as for NNFactory.
            device: as for NNFactory.
        """
        super().__init__(profile, device)
        shapes = (query_shapes, key_shapes, value_shapes, mask_shapes)
        self.query, self.key, self.value, self.mask = map(self.parameter, shapes)
        self.scaled_dot_product_attention(self.query, self.key, self.value, self.mask, is_causal)


class SimpleSDPA(NNFactory):
    """Attention without a mask."""

    def __init__(
        self,
        query_shapes: Sequence[int],
        key_shapes: Sequence[int],
        value_shapes: Sequence[int],
        is_causal: bool = False,
        profile: bool = False,
        device: str = "NPU",
    ) -> None:
        """Builds the graph; the arguments are SDPA's."""
        super().__init__(profile, device)
        shapes = (query_shapes, key_shapes, value_shapes)
        self.query, self.key, self.value = map(self.parameter, shapes)
        self.scaled_dot_product_attention_simple(self.query, self.key, self.value, is_causal)
