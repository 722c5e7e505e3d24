"""A layer's cache with the keys of an indexer, which chooses the past tokens worth attending to.

transformers keeps them beside keys and values (DeepSeek V3.2, GLM DSA) as (batch, length, size). A
step has them as (batch, 1, length, size), like any other cache.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import cache_utils
from transformers.cache_utils import DynamicLayer

__all__ = ["IndexedLayer", "is_indexed"]

# Absent from transformers before it had such models.
_OWN_LAYER = getattr(cache_utils, "DynamicIndexedLayer", None)


class IndexedLayer(DynamicLayer):  # type: ignore[misc]
    """Keys, values and an indexer's keys, for a step that is captured.

    Attributes:
        indexer_keys: (batch, 1, length, size).
    """

    indexer_keys: torch.Tensor

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Adds keys (batch, tokens, size); returns all of them, (batch, length, size)."""
        new = indexer_key_states.unsqueeze(1)
        self.indexer_keys = torch.cat([self.indexer_keys, new], dim=2)
        return self.indexer_keys.squeeze(1)


def is_indexed(layer: Any) -> bool:
    """Whether a layer of transformers' cache has keys of an indexer, and nothing else besides."""
    if _OWN_LAYER is None or type(layer) is not _OWN_LAYER:
        return False
    return getattr(layer, "indexer_position_ids", None) is None
