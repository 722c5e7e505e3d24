"""The operator `write_ring` once more, in Python alone: no compiler, no wheel of one's own.

It needs npu_compiler, and so the package does not import it.
"""

from __future__ import annotations

import torch

import npu_compiler
from add_custom.converter import convert_ring

__all__ = ["write_ring"]


# --8<-- [start:ring_python]
@npu_compiler.define_op(
    "add_custom::write_ring_in_python", mutates_args=("cache",), convert=convert_ring
)
def write_ring(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> None:
    """Writes `cache[(start + i) % slots] = rows[i]` for each row, in place.

    Args:
        cache: (slots, width).
        rows: (count, width), of the dtype and device of `cache`, at most one for each slot.
        start: one int64 number, also negative.
    """
    if len(rows) > len(cache):
        raise ValueError(
            f"write_ring: rows must fit into cache, {len(cache)} slots, got {len(rows)} rows. "
            "Pass fewer."
        )
    at = start % len(cache) + torch.arange(len(rows), device=rows.device)
    cache.index_copy_(0, at % len(cache), rows)


# --8<-- [end:ring_python]
