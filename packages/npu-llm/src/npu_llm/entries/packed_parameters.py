"""What a model's parameters are in its file of packed weights, read back a few rows at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from npu_compiler.kernel_programs import Lowered
from npu_ops.kernel_programs.program import Recipe
from npu_ops.kernel_programs.weights import BLOCK_OUTPUTS, PackedLinear, interleave, read_weights

__all__ = ["PackedParameters", "arranged", "unpack_rows"]

_INTEGERS = ("int8", "int4")
_NIBBLES = 0x0F0F0F0F
_SLAB_INPUTS = 64


@dataclass(frozen=True)
class _Place:
    """Where a matrix of a parameter is: rows of a packed weight.

    Attributes:
        weight: the packed weight.
        rows: which of its outputs are those of the parameter, in the parameter's order; None for
            all, in their own order.
        is_transposed: whether the parameter is (inputs, outputs).
    """

    weight: PackedLinear
    rows: torch.Tensor | None
    is_transposed: bool

    def read(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the matrix, or some rows of it, as the parameter has it."""
        chosen = self.rows
        if rows is not None:
            chosen = rows if chosen is None else chosen[rows]
        matrix = unpack_rows(self.weight, chosen)
        return matrix.t() if self.is_transposed else matrix


class PackedParameters:
    """The parameters that a file of packed weights holds as integers, by their addresses."""

    def __init__(self, lowered: Lowered, path: Path) -> None:
        """Maps the file.

        Args:
            lowered: the program that the weights are for, and the parameters they were made of.
            path: the file.
        """
        # By address, then by index for stacked experts; index None for a matrix.
        self._places: dict[int, dict[int | None, _Place]] = {}
        self._latest: tuple[int, torch.Tensor] | None = None
        weights = read_weights(path)
        for name, recipe in lowered.program.weights.items():
            packed = weights[name]
            if isinstance(packed, PackedLinear) and packed.kind in _INTEGERS:
                self._note(packed, recipe, lowered)

    def _note(self, packed: PackedLinear, recipe: Recipe, lowered: Lowered) -> None:
        sources = [lowered.sources[source] for source in recipe.sources]
        sizes = [source.shape[-1 if recipe.transposed else -2] for source in sources]
        order = arranged(torch.arange(packed.outputs), recipe, lowered.tables)
        rows = torch.empty_like(order)
        rows[order] = torch.arange(packed.outputs)
        is_plain = (
            len(sources) == 1 and torch.equal(order, rows) and bool((order[1:] > order[:-1]).all())
        )
        for source, part in zip(sources, torch.split(rows, sizes), strict=True):
            place = _Place(packed, None if is_plain else part, recipe.transposed)
            self._places.setdefault(source.data_ptr(), {})[recipe.index] = place

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the values that a parameter is stored as; None if it is not stored as integers.

        Args:
            tensor: a parameter: a matrix, or those of experts (experts, rows, columns).
        """
        places = self._places.get(tensor.data_ptr())
        if places is None:
            return None
        if None in places:
            return places[None].read()
        # Experts are asked for one by one, with all of them named each time.
        if self._latest is None or self._latest[0] != tensor.data_ptr():
            stacked = torch.stack([places[index].read() for index in range(len(tensor))])
            self._latest = tensor.data_ptr(), stacked
        return self._latest[1]

    def rows(self, tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor | None:
        """Returns some rows of what `read` returns (*indices.shape, columns); None for none."""
        place = self._places.get(tensor.data_ptr(), {}).get(None)
        if place is None or place.is_transposed:
            return None
        return place.read(indices.reshape(-1)).reshape(*indices.shape, -1)


def arranged(
    joined: torch.Tensor, recipe: Recipe, tables: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """Returns what belongs to each output of joined sources, in the order of the packed weight.

    Args:
        joined: (outputs, ...), the sources' one after the other.
        recipe: how the weight is made.
        tables: has the order that the recipe names.
    """
    if recipe.order is not None:
        joined = joined[tables[recipe.order]]
    return interleave(*joined.chunk(2)) if recipe.interleaved else joined


def unpack_rows(weight: PackedLinear, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Returns some rows of the matrix that packed integers stand for.

    It looks at the rows' blocks alone, and moves four elements at a time: npu_ops'
    kernel_programs.weights.unpack takes four times as long (SmolLM2 in int4, 2026-11-23).

    Args:
        weight: of kind "int8" or "int4".
        rows: (count,) int64, which of its outputs; None for all.

    Returns:
        (count, inputs) float32.
    """
    rows = torch.arange(weight.outputs) if rows is None else rows
    blocks, at = torch.unique(rows // BLOCK_OUTPUTS, return_inverse=True)
    lanes = at * BLOCK_OUTPUTS + rows % BLOCK_OUTPUTS
    all_blocks, slabs = -(-weight.outputs // BLOCK_OUTPUTS), -(-weight.inputs // _SLAB_INPUTS)
    vectors = 16 if weight.kind == "int8" else 8
    # Whole blocks in their order need no second choice.
    are_whole = torch.equal(lanes, torch.arange(len(blocks) * BLOCK_OUTPUTS))

    def by_row(tensor: torch.Tensor) -> torch.Tensor:
        """From (blocks, columns, 16) to (rows, columns)."""
        chosen = tensor if len(blocks) == all_blocks else tensor[blocks]
        rows_of = chosen.transpose(1, 2).reshape(len(blocks) * BLOCK_OUTPUTS, tensor.shape[1])
        return rows_of if are_whole else rows_of[lanes]

    # Four neighbouring inputs of an output are one element here.
    fours = by_row(weight.data.view(torch.int32).view(all_blocks, slabs * vectors, BLOCK_OUTPUTS))
    if weight.kind == "int4":
        halves = fours.view(len(rows), slabs, 1, vectors)
        both = torch.cat([halves & _NIBBLES, (halves >> 4) & _NIBBLES], 2)
        fours = both.view(len(rows), slabs * 2 * vectors)
    # Indexing keeps the order of the axes in memory.
    values = fours.contiguous().view(torch.uint8)[:, : weight.inputs].float()
    assert weight.scales is not None, "integers have scales"
    if weight.kind == "int8":
        values -= 128.0 if weight.zeros is None else weight.zeros[rows, None].float()
        return values.mul_(weight.scales[rows, None])

    grouped = values.view(len(rows), weight.inputs // weight.group, weight.group)
    grouped -= 8.0 if weight.zeros is None else by_row(weight.zeros)[..., None].float()
    return grouped.mul_(by_row(weight.scales)[..., None].float()).view(len(rows), weight.inputs)
