"""Packs weights in a GGUF file's types: blocks without rounding, others in a float dtype.

Blocks of a type without a kernel are repacked first (npu_llm.gguf.repacking).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from npu_compiler.kernel_programs import Lowered
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.gguf.repacking import REPACKED, repack
from npu_ops.kernel_programs.program import Recipe
from npu_ops.kernel_programs.weights import (
    BLOCK_KINDS,
    BLOCK_OUTPUTS,
    PackedKind,
    PackedLinear,
    interleave,
    mix,
    pack,
    pack_blocks,
)

__all__ = ["arranged", "pack_exact_floats", "pack_stored"]

_FLOATS: dict[PackedKind, torch.dtype] = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def arranged(
    joined: torch.Tensor, recipe: Recipe, tables: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """Returns the values per output of joined sources, in the order of the packed weight.

    Args:
        joined: (outputs, ...), the concatenated sources.
        recipe: how to build the weight.
        tables: contains the order that the recipe names.
    """
    if recipe.order is not None:
        joined = joined[tables[recipe.order]]
    return interleave(*joined.chunk(2)) if recipe.interleaved else joined


def pack_stored(
    recipe: Recipe, lowered: Lowered, weights: StreamedWeights, losses: dict[str, float]
) -> PackedLinear | None:
    """Packs the blocks of a weight's sources without rounding again.

    Args:
        recipe: how to build the weight.
        lowered: the parameters behind the weight.
        weights: their values.
        losses: receives the largest loss of a source for each repacked type.

    Returns:
        None unless all sources are blocks that the kernels support, and each group of 16 outputs is
        of one kind.
    """
    rows: dict[str, list[torch.Tensor]] = {}
    places: list[tuple[str, torch.Tensor]] = []  # per source: kind, rows among that kind's rows
    inputs = 0
    for source in recipe.sources:
        blocks = weights.blocks(lowered.sources[source].detach())
        if blocks is None or blocks.is_transposed != recipe.transposed:
            return None
        kind = REPACKED.get(blocks.type, blocks.type).lower()
        if kind not in BLOCK_KINDS:
            return None
        inputs = blocks.shape[-1]
        found = blocks.rows(recipe.index)
        if blocks.type in REPACKED:
            repacked = repack(blocks.type, found)
            found = repacked.rows
            losses[blocks.type] = max(repacked.loss, losses.get(blocks.type, 0.0))
        own = torch.from_numpy(np.ascontiguousarray(found))
        held = rows.setdefault(kind, [])
        first = sum(map(len, held))
        held.append(own)
        places.append((kind, torch.arange(first, first + len(own))))
    kinds = list(rows)
    joined = torch.cat([place for _, place in places])
    numbers = torch.cat([torch.full_like(place, kinds.index(kind)) for kind, place in places])
    order = arranged(joined, recipe, lowered.tables)
    kind_of = arranged(numbers, recipe, lowered.tables)

    def part(chosen: torch.Tensor | slice) -> PackedLinear:
        kind = kinds[int(kind_of[chosen][0])]
        held = rows[kind]
        blocks = held[0] if len(held) == 1 else torch.cat(held)
        return pack_blocks(kind, blocks, inputs=inputs, order=order[chosen])

    if len(kinds) == 1:
        return part(slice(None))
    if recipe.interleaved:
        pairs = torch.arange(len(order)).view(-1, 2, BLOCK_OUTPUTS)
        halves = [pairs[:, side].flatten() for side in range(2)]
        if any(bool((kind_of[half] != kind_of[half][0]).any()) for half in halves):
            return None
        return mix([part(half) for half in halves], alternating=True)
    _, lengths = torch.unique_consecutive(kind_of, return_counts=True)
    ends = lengths.cumsum(0).tolist()
    if any(end % BLOCK_OUTPUTS for end in ends[:-1]):
        return None
    return mix([part(slice(first, end)) for first, end in zip([0, *ends], ends, strict=False)])


def pack_exact_floats(value: torch.Tensor) -> PackedLinear:
    """Packs values in their own 16 bits, in another exact 16-bit type, or in float32."""
    for kind, dtype in _FLOATS.items():
        if value.dtype is dtype:
            return pack(value, kind)
    for kind, dtype in _FLOATS.items():
        if torch.equal(value.to(dtype).to(value.dtype), value):
            return pack(value, kind)
    return pack(value, "float32")
