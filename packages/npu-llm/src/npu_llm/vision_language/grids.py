"""Encoders of patches from a grid: what follows from the grid is computed before they run.

An image of any size is a list of patches and a grid. Positions, and which patches attend to each
other, depend on the grid's numbers, so a captured encoder takes them as inputs; transformers has
the functions that compute them. Patches of one image or frame attend to each other, which
transformers says to kernels for packed sequences: by where each sequence starts. Registered as one
of these, attention here makes a mask of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface

from npu_llm.errors import CaptureError

try:
    from transformers.exporters.utils import precompute_export_inputs
except ImportError:  # before transformers 5.2x: such encoders cannot be captured
    precompute_export_inputs = None

__all__ = ["GRID", "packed_attention", "with_positions"]

GRID = "grid_thw"
# transformers looks for "flash" in the name to tell who takes packed sequences.
_PACKED = "npu_flash_packed"


def with_positions(
    module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Adds what an encoder computes from its grid, if it takes one.

    Args:
        module: the encoder.
        tensors: what it is called with, by name.

    Raises:
        CaptureError: [capture-failed] if transformers has no such functions.
    """
    if GRID not in tensors:
        return dict(tensors)
    if precompute_export_inputs is None:
        raise CaptureError(
            f"{type(module).__name__}: must take what follows from its grid as inputs, which "
            "transformers 5.24 lets it; got an older release. Install a newer transformers.",
            code="capture-failed",
        )
    given: dict[str, Any] = dict(tensors)
    precompute_export_inputs(module, given)
    return {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}


@contextmanager
def packed_attention(
    module: Any, tensors: Mapping[str, torch.Tensor]
) -> Iterator[Mapping[str, Any]]:
    """Lets an encoder of patches attend by a mask; yields arguments to call it with as well."""
    if GRID not in tensors:
        yield {}
        return
    AttentionInterface.register(_PACKED, _attend)
    config = module.config
    before = config._attn_implementation
    config._attn_implementation = _PACKED
    try:
        # Read by kernels alone, and computed from data where it is not given.
        longest = {"max_seqlen": 1}
        if "cu_window_seqlens" in tensors:
            longest["max_window_seqlen"] = 1
        yield longest
    finally:
        config._attn_implementation = before


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    """Attends within sequences that lie one after the other.

    Args:
        module: unused.
        query: (1, heads, patches, size), as are key and value.
        key: see query.
        value: see query.
        scaling: factor of the scores.
        cu_seq_lens_q: (sequences + 1,) where each starts, and the end.

    Returns:
        (1, patches, heads, size), and None for the weights.
    """
    places = torch.arange(query.shape[2], device=query.device)
    numbers = (places[:, None] >= cu_seq_lens_q[None, 1:]).sum(-1)
    mask = numbers[:, None] == numbers[None, :]
    found = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask[None, None], scale=scaling
    )
    return found.transpose(1, 2).contiguous(), None
