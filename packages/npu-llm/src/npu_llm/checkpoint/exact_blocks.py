"""Finds the integers of weights that were made of 4-bit blocks, so that they are not rounded again.

GGUF's Q4_0 holds 32 weights of a row as d * (q - 8), with d in float16 and q from 0 to 15. Readers
hand on the values, with rows in another order, joined or transposed, and not what they were made
of. But a block's largest value is a multiple of d, so integers and scale are found from the values
alone; and as they are only used where they give each value exactly, nothing depends on the guess.
"""

from __future__ import annotations

import torch

from npu_compiler.quantize import QuantizedWeight

__all__ = ["exact_blocks"]

_BLOCK_SIZE = 32
# Rows that are looked at first, once one block fits.
_FIRST_ROWS = 4
_CHUNK_ELEMENTS = 1 << 21
_LOWEST, _HIGHEST = -8, 7


def exact_blocks(weight: torch.Tensor) -> QuantizedWeight | None:
    """Returns a matrix as symmetric integers of 4 bits in blocks of 32, if these are its values.

    Args:
        weight: (rows, columns), a float dtype.

    Returns:
        Integers and scales, which float16 holds too, whose products are exactly the given values;
        None if there are none such.
    """
    if weight.dim() != 2 or weight.shape[1] % _BLOCK_SIZE or not weight.numel():
        return None
    rows, columns = weight.shape
    if not _may_be_exact(weight[0, :_BLOCK_SIZE].float()):
        return None
    values = torch.empty((rows, columns // _BLOCK_SIZE, _BLOCK_SIZE), dtype=torch.int8)
    scale = torch.empty((rows, columns // _BLOCK_SIZE, 1))
    first, step = 0, _FIRST_ROWS
    while first < rows:
        part = slice(first, first + step)
        found = _exact(weight[part].float().reshape(-1, columns // _BLOCK_SIZE, _BLOCK_SIZE))
        if found is None:
            return None
        values[part], scale[part] = found
        first, step = first + step, max(1, _CHUNK_ELEMENTS // columns)
    return QuantizedWeight(values, scale, None, 4)


def _may_be_exact(block: torch.Tensor) -> bool:
    """Whether a block (32,) float32 fits: most weights are of another kind, and fail at once."""
    extreme = block[block.abs().argmax()]
    scales = (extreme / torch.arange(_LOWEST, 0)).half().float()[:, None]
    whole = (block / scales).round_().nan_to_num_(0.0)
    fits = (whole * scales == block) & (whole >= _LOWEST) & (whole <= _HIGHEST)
    return bool(fits.all(1).any())


def _exact(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns integers and scales of blocks (rows, groups, 32) float32."""
    low, high = blocks.aminmax(dim=-1, keepdim=True)
    extreme = torch.where(-low < high, high, low)
    # An encoder gives a block's extreme value -8, so that the first guess is nearly always right.
    values, scale, fits = _by_level(blocks, extreme, -_LOWEST)
    for level in range(-_LOWEST - 1, 0, -1):
        if bool(fits.all()):
            break
        left = ~fits
        values[left], scale[left], fits[left] = _by_level(blocks[left], extreme[left], level)
    return (values, scale) if bool(fits.all()) else None


def _by_level(
    blocks: torch.Tensor, extreme: torch.Tensor, level: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Takes extreme values for -level times the scales; returns integers, scales, what fits."""
    scale = (extreme / -level).half().float()
    whole = (blocks / scale).round_().nan_to_num_(0.0)  # of a block of zeros
    fits = (whole * scale == blocks) & (whole >= _LOWEST) & (whole <= _HIGHEST)
    return whole.clamp_(_LOWEST, _HIGHEST).to(torch.int8), scale, fits.all(-1)
