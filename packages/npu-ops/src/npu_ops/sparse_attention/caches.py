"""Paged caches of sparse attention: addressing, rows, and checks before writes.

Python code does not depend on tensor values, so that it can be traced with symbolic sizes. The
kernels check the arguments.
"""

from dataclasses import dataclass
from itertools import combinations

import torch

from npu_ops.sparse_attention.layer import Layer

__all__ = [
    "Addressing",
    "address",
    "check_addressing",
    "check_caches",
    "flat_rows",
    "rows_written",
    "write_rows",
]


@dataclass(frozen=True)
class Addressing:
    """Query rows (all tokens, with padding) and the key rows that they attend to.

    Attributes:
        sequence: (rows,), the sequence of each query row; 0 for padding.
        visible: (rows,), number of visible keys; 0 for padding.
        capacity: maximum positions of a sequence.
        starts: (batch,), the flat row of position 0, if a sequence's rows are contiguous.
        block_table: (batch, pages), or None without pages.
        page_size: positions of a page; 1 without pages.
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
    """Reads the arguments shared by both ops; see the package's docstring."""
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
    """Returns the start of each sequence from the cumulative lengths."""
    return torch.cat([ends.new_zeros(1), ends[:-1]])[: ends.shape[0]]


def _lengths(
    given: torch.Tensor | None, batch: int, default: int, device: torch.device
) -> torch.Tensor:
    if given is not None:
        return given.to(torch.int64)
    return torch.full((batch,), default, dtype=torch.int64, device=device)


OP = "npu.sparse_attention"
CACHES = ("kv_cache", "kr_cache", "idx_cache")
# Names of the block's arguments in errors of the indexer.
OWN_NAMES = {
    "npu.lightning_indexer": OP,
    "lengths_key": "lengths_kv",
    "pages of `key`,": "pages of the caches,",
    "got key (": "got idx_cache (",
}


def write_rows(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Writes rows to slots, except for slots of -1; returns the cache.

    Args:
        cache: (pages, positions, 1, width), any strides.
        slots: (batch, length), `page * positions + position`.
        rows: (batch, length, width), or with a head between.
    """
    flat = slots.reshape(-1).to(torch.int64)
    is_kept = flat >= 0
    kept, values = flat[is_kept], rows.reshape(-1, rows.shape[-1])[is_kept]
    cache[kept // cache.shape[1], kept % cache.shape[1], 0] = values
    return cache


def rows_written(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns the cache after `write_rows`, without changing it; no size depends on values."""
    width, count = cache.shape[-1], cache.shape[0] * cache.shape[1]
    flat = slots.reshape(-1).to(torch.int64)
    # Unkept rows go to an extra row, which is cut off.
    at = torch.where(flat < 0, count, flat)
    longer = torch.cat([cache.reshape(count, width), cache.new_zeros(1, width)])
    whole = longer.index_put((at,), rows.reshape(-1, width))
    return whole[:count].reshape(cache.shape)


def check_caches(layer: Layer) -> None:
    """Refuses slots and caches that would lose writes, before writing.

    Raises:
        ValueError: [op-index] for a slot out of range or used twice; [op-alias] for caches that
            share elements.
    """
    slots = layer.cache_index.reshape(-1)
    count = layer.kv_cache.shape[0] * layer.kv_cache.shape[1]
    bad = slots[(slots < -1) | (slots >= count)]
    if bad.numel():
        raise ValueError(
            f"{OP}: `cache_index` must be -1 or a slot of the caches, below {count}, got "
            f"{int(bad[0])}. Allocate the page. [op-index]"
        )
    kept = slots[slots >= 0]
    if torch.unique(kept).numel() != kept.numel():
        raise ValueError(
            f"{OP}: `cache_index` must give each token a separate slot, got {slots.tolist()[:8]}. "
            "Pass -1 for tokens that are not kept. [op-index]"
        )
    for name in CACHES:
        _check_own_elements(name, getattr(layer, name))
    for first, second in combinations(CACHES, 2):
        if _share_elements(getattr(layer, first), getattr(layer, second)):
            raise ValueError(
                f"{OP}: {first} and {second} must share no element, got two views of the same "
                "memory. Allocate both. [op-alias]"
            )


def _check_own_elements(name: str, cache: torch.Tensor) -> None:
    sizes = zip(cache.shape, cache.stride(), strict=True)
    reach = 1
    for size, stride in sorted(sizes, key=lambda pair: pair[1]):
        if size > 1 and stride < reach:
            raise ValueError(
                f"{OP}: `{name}` must have a separate element at each index, got strides "
                f"{cache.stride()} for {tuple(cache.shape)}. Clone it. [op-alias]"
            )
        reach = max(reach, (size - 1) * stride + 1) if size > 1 else reach


def _share_elements(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two caches may share an element; views of disjoint columns do not."""
    if not first.numel() or not second.numel():
        return False
    size = first.element_size()
    spans = []
    for cache in (first, second):
        steps = zip(cache.shape, cache.stride(), strict=True)
        reach = sum((count - 1) * stride for count, stride in steps) + 1
        spans.append((cache.data_ptr(), cache.data_ptr() + reach * size))
    if spans[0][1] <= spans[1][0] or spans[1][1] <= spans[0][0]:
        return False
    outer = first.stride()[:2]
    if outer != second.stride()[:2] or first.stride(3) != 1 or second.stride(3) != 1:
        return True
    row = outer[1] * size
    shift = second.data_ptr() - first.data_ptr()
    low, high = (first, second) if shift >= 0 else (second, first)
    start, end = abs(shift), abs(shift) + high.shape[3] * size
    return start < low.shape[3] * size or end > row


def check_addressing(layer: Layer) -> None:
    """Checks lengths, block table and options as the ops do, without computing scores.

    Each call has either no queries or no keys; meta tensors are checked only for shapes.

    Raises:
        ValueError: with the codes of the ops, naming the block's arguments.
    """
    try:
        _check_addressing(layer)
    except ValueError as error:
        text = str(error)
        for its_name, own in OWN_NAMES.items():
            text = text.replace(its_name, own)
        raise ValueError(text) from None


def _check_addressing(layer: Layer) -> None:
    query = layer.x.new_empty(*layer.x.shape[:2], 1, layer.idx_cache.shape[3])
    none = layer.actual_seq_lengths_kv.new_zeros(layer.x.shape[0])
    for queries, keys in (
        (none, layer.actual_seq_lengths_kv),
        (layer.actual_seq_lengths_query, none),
    ):
        torch.ops.npu.lightning_indexer(
            query,
            layer.idx_cache,
            query[..., 0],
            block_table=layer.block_table,
            actual_seq_lengths_query=queries,
            actual_seq_lengths_key=keys,
            layout_key="PA_BSND",
            sparse_count=min(layer.sparse_count, 1),
            sparse_mode=layer.sparse_mode,
        )
