"""Paged caches that are written in place: the rows, and what must hold before any is written."""

from itertools import combinations

import torch

from npu_ops.sparse_attention.layer import Layer

__all__ = ["check_addressing", "check_caches", "rows_written", "write_rows"]

OP = "npu.sparse_attention"
CACHES = ("kv_cache", "kr_cache", "idx_cache")
# What the indexer's errors name, as the block's arguments.
OWN_NAMES = {
    "npu.lightning_indexer": OP,
    "lengths_key": "lengths_kv",
    "pages of key,": "pages of the caches,",
    "got key (": "got idx_cache (",
}


def write_rows(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Writes rows at slots, and nothing for slots of -1; returns the cache.

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
    """Returns what `write_rows` makes of a cache, and leaves it; no size depends on values."""
    width, count = cache.shape[-1], cache.shape[0] * cache.shape[1]
    flat = slots.reshape(-1).to(torch.int64)
    # What is not kept goes to one row more, which is cut off.
    at = torch.where(flat < 0, count, flat)
    longer = torch.cat([cache.reshape(count, width), cache.new_zeros(1, width)])
    whole = longer.index_put((at,), rows.reshape(-1, width))
    return whole[:count].reshape(cache.shape)


def check_caches(layer: Layer) -> None:
    """Refuses slots and caches that would lose what is written, before anything is.

    Raises:
        ValueError: [op-index] for a slot that is not there or that two tokens have; [op-alias] for
            caches that share elements.
    """
    slots = layer.cache_index.reshape(-1)
    count = layer.kv_cache.shape[0] * layer.kv_cache.shape[1]
    bad = slots[(slots < -1) | (slots >= count)]
    if bad.numel():
        raise ValueError(
            f"{OP}: cache_index must be -1 or a slot of the caches, below {count}; got "
            f"{int(bad[0])}. Allocate the page. [op-index]"
        )
    kept = slots[slots >= 0]
    if torch.unique(kept).numel() != kept.numel():
        raise ValueError(
            f"{OP}: cache_index must give each token a slot of its own; got {slots.tolist()[:8]}. "
            "Pass -1 for tokens that are not kept. [op-index]"
        )
    for name in CACHES:
        _check_own_elements(name, getattr(layer, name))
    for first, second in combinations(CACHES, 2):
        if _share_elements(getattr(layer, first), getattr(layer, second)):
            raise ValueError(
                f"{OP}: {first} and {second} must share no element; got two views of the same "
                "memory. Allocate both. [op-alias]"
            )


def _check_own_elements(name: str, cache: torch.Tensor) -> None:
    sizes = zip(cache.shape, cache.stride(), strict=True)
    reach = 1
    for size, stride in sorted(sizes, key=lambda pair: pair[1]):
        if size > 1 and stride < reach:
            raise ValueError(
                f"{OP}: {name} must have an element of its own at each place; got strides "
                f"{cache.stride()} for {tuple(cache.shape)}. Clone it. [op-alias]"
            )
        reach = max(reach, (size - 1) * stride + 1) if size > 1 else reach


def _share_elements(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two caches may share an element; views of columns beside each other do not."""
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
    """Refuses lengths, block table and options as the ops do, but scores no key.

    Each call has either no queries or no keys; on meta tensors only shapes are looked at.

    Raises:
        ValueError: with the codes of the ops, about the block's own arguments.
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
