"""Which keys a query row sees and where their rows lie, as tensors: for references and gradients.

Nothing depends on a value in Python, so that this can be traced with symbolic sizes. Arguments are
not checked here; the kernels do.
"""

from dataclasses import dataclass

import torch

__all__ = ["Addressing", "address", "flat_rows"]


@dataclass(frozen=True)
class Addressing:
    """Query rows (all tokens, with padding) and the rows of keys that they may see.

    Attributes:
        sequence: (rows,), the sequence of each query row; 0 for padding.
        visible: (rows,), how many keys it sees; 0 for padding.
        capacity: positions that a sequence can have at most.
        starts: (batch,), the flat row of position 0 where a sequence's rows stand together.
        block_table: (batch, pages), or None where nothing is paged.
        page_size: positions of a page; 1 where nothing is paged.
    """

    sequence: torch.Tensor
    visible: torch.Tensor
    capacity: int
    starts: torch.Tensor
    block_table: torch.Tensor | None
    page_size: int

    def flat(self, positions: torch.Tensor) -> torch.Tensor:
        """Returns the flat key rows of logical positions, which must be visible.

        Args:
            positions: (rows, any count), logical positions of each query row's sequence.
        """
        if self.block_table is None:
            return self.starts[self.sequence].unsqueeze(1) + positions
        pages = self.block_table.to(torch.int64)[self.sequence]
        page = pages.gather(1, positions // self.page_size)
        return page * self.page_size + positions % self.page_size


def flat_rows(cache: torch.Tensor) -> torch.Tensor:
    """Returns a key-side tensor of any layout as (rows, width)."""
    return cache.reshape(-1, cache.shape[-1])


def address(
    query: torch.Tensor,
    key: torch.Tensor,
    *,
    query_lengths: torch.Tensor | None,
    key_lengths: torch.Tensor | None,
    block_table: torch.Tensor | None,
    layout_query: str,
    layout_key: str,
    sparse_mode: int,
) -> Addressing:
    """Reads the arguments that both ops have; see the package's docstring."""
    device = query.device
    if layout_query == "TND":
        assert query_lengths is not None
        ends = query_lengths.to(torch.int64)
        row = torch.arange(query.shape[0], device=device)
        sequence = torch.searchsorted(ends, row, right=True)
        is_real = sequence < ends.shape[0]
        sequence = torch.where(is_real, sequence, 0)
        counts = ends - _before(ends)
        offset = row - _before(ends)[sequence]
    else:
        batch, length = query.shape[:2]
        row = torch.arange(batch * length, device=device)
        sequence, offset = row // length if length else row, row % length if length else row
        counts = _lengths(query_lengths, batch, length, device)
        is_real = offset < counts[sequence]
    batch = counts.shape[0]
    starts = torch.zeros(batch, dtype=torch.int64, device=device)
    page_size = 1
    if layout_key == "PA_BSND":
        assert block_table is not None
        page_size = key.shape[1]
        capacity = block_table.shape[1] * page_size
        keys = _lengths(key_lengths, batch, capacity, device)
    elif layout_key == "TND":
        assert key_lengths is not None
        capacity = key.shape[0]
        ends = key_lengths.to(torch.int64)
        starts, keys = _before(ends), ends - _before(ends)
    else:
        capacity = key.shape[1]
        keys = _lengths(key_lengths, batch, capacity, device)
        starts = torch.arange(batch, device=device) * capacity
    visible = keys[sequence]
    if sparse_mode == 3:
        visible = (visible - (counts[sequence] - 1 - offset)).clamp(min=0)
    visible = torch.where(is_real, visible, 0)
    return Addressing(sequence, visible, capacity, starts, block_table, page_size)


def _before(ends: torch.Tensor) -> torch.Tensor:
    """Returns where each sequence begins, of the running sums of lengths."""
    return torch.cat([ends.new_zeros(1), ends[:-1]])[: ends.shape[0]]


def _lengths(
    given: torch.Tensor | None, batch: int, default: int, device: torch.device
) -> torch.Tensor:
    if given is not None:
        return given.to(torch.int64)
    return torch.full((batch,), default, dtype=torch.int64, device=device)
