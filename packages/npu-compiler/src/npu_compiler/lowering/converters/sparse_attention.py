"""Converters of torch.ops.npu's indexer and attention over selected positions, of static sizes.

npu_ops.sparse_attention defines the ops. A program scores whole caches in one product, selects with
TopK and fetches rows with Gather. It masks the indices that the ops refuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch
from torch import fx

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.lowering import nan
from npu_compiler.lowering.context import MASKED, Context
from npu_compiler.lowering.registry import converter

__all__: list[str] = []

npu = torch.ops.npu
_INT, _FLOAT = torch.int32, torch.float32
# The CPU plugin computes integers in float32.
_MOST_ROWS = 1 << 24


@dataclass(frozen=True)
class _Rows:
    """Positions of query rows, and the cache rows they see; all int32."""

    count: int  # of the rows
    capacity: int  # most positions that a sequence may have
    sequence: ov.Output  # (rows,), clamped for padding
    visible: ov.Output  # (rows,), number of positions each row sees; 0 for padding
    # (sequences,), first flat cache row of each sequence's keys.
    key_starts: ov.Output
    table: ov.Output | None  # (sequences * pages,), or None without pages
    # page_size, pages: of a paged cache; pages of one sequence
    page_size: int
    pages: int
    cache_rows: int  # flat rows of the cache

    def flat(self, ctx: Context, positions: ov.Output) -> ov.Output:
        """Returns flat cache rows of (rows, n) positions, an arbitrary row for a missing one."""
        owner = ctx.unsqueeze(self.sequence, [1])
        if self.table is None:
            starts = ctx.unsqueeze(_take(ctx, self.key_starts, self.sequence), [1])
            found = ops.add(starts, positions).output(0)
        else:
            size = _whole(ctx, self.page_size)
            page = ops.divide(positions, size).output(0)
            rest = ops.subtract(positions, ops.multiply(page, size))
            page = ops.clamp(page, 0, self.pages - 1).output(0)
            entry = ops.add(ops.multiply(owner, _whole(ctx, self.pages)), page).output(0)
            found = ops.add(ops.multiply(_take(ctx, self.table, entry), size), rest).output(0)
        return ops.clamp(found, 0, self.cache_rows - 1).output(0)


def _whole(ctx: Context, value: int) -> ov.Output:
    return ctx.number(value, _INT)


def _vector(ctx: Context, values: Any) -> ov.Output:
    return ctx.constant(torch.as_tensor(np.ascontiguousarray(values), dtype=_INT))


def _take(ctx: Context, values: ov.Output, at: ov.Output) -> ov.Output:
    return ops.gather(values, at, ctx.number(0, torch.int64)).output(0)


def _static(ctx: Context, *operands: Any) -> None:
    for operand in operands:
        if operand is not None and None in ctx.sizes(operand):
            ctx.refuse("dynamic shapes: the host kernel supports them")


def _address(
    ctx: Context,
    query: fx.Node,
    key: fx.Node,
    *,
    actual_seq_lengths_query: Any,
    block_table: Any,
    layout_query: str,
    sparse_mode: int,
    **of_key: Any,
) -> _Rows:
    query_lengths, layout_key = actual_seq_lengths_query, of_key["layout_key"]
    key_lengths = of_key["actual_seq_lengths_key"]
    _static(ctx, query, key, query_lengths, key_lengths, block_table)
    sizes = [int(size) for size in ctx.sizes(query) if size is not None]
    key_sizes = [int(size) for size in ctx.sizes(key) if size is not None]
    if layout_query == "TND":
        count = sizes[0]
        ends = ctx.get(query_lengths, _INT)
        batch = int(ctx.sizes(query_lengths)[0] or 0)
        before = _before(ctx, ends, batch)
        row = _vector(ctx, np.arange(count))
        passed = ops.greater_equal(ctx.unsqueeze(row, [1]), ctx.unsqueeze(ends, [0]))
        found = ops.reduce_sum(ops.convert(passed, ov.Type.i32), ctx.integers([1]), False).output(0)
        is_real = ops.less(found, _whole(ctx, batch)).output(0)
        sequence = ops.minimum(found, _whole(ctx, batch - 1)).output(0)
        lengths = ops.subtract(ends, before).output(0)
        offset = ops.subtract(row, _take(ctx, before, sequence)).output(0)
    else:
        batch, length = sizes[:2]
        count = batch * length
        sequence = _vector(ctx, np.repeat(np.arange(batch), length))
        offset = _vector(ctx, np.tile(np.arange(length), batch))
        lengths = _lengths(ctx, query_lengths, batch, length)
        is_real = ops.less(offset, _take(ctx, lengths, sequence)).output(0)
    table, page_size, pages = None, 1, 0
    starts = _vector(ctx, np.zeros(batch))
    cache_rows = key_sizes[0]
    if layout_key == "PA_BSND":
        page_size, pages = key_sizes[1], int(ctx.sizes(block_table)[1] or 0)
        capacity, cache_rows = pages * page_size, cache_rows * page_size
        keys = _lengths(ctx, key_lengths, batch, capacity)
        table = ctx.reshape(ctx.get(block_table, _INT), [-1])
    elif layout_key == "TND":
        capacity = cache_rows
        key_ends = ctx.get(key_lengths, _INT)
        starts = _before(ctx, key_ends, batch)
        keys = ops.subtract(key_ends, starts).output(0)
    else:
        capacity, cache_rows = key_sizes[1], key_sizes[0] * key_sizes[1]
        keys = _lengths(ctx, key_lengths, batch, capacity)
        starts = _vector(ctx, np.arange(batch) * capacity)
    if cache_rows > _MOST_ROWS:
        ctx.refuse(f"a cache of more than {_MOST_ROWS:,} positions")
    visible = _take(ctx, keys, sequence)
    if sparse_mode == 3:
        last = ops.subtract(_take(ctx, lengths, sequence), _whole(ctx, 1))
        unseen = ops.subtract(last, offset)
        visible = ops.maximum(ops.subtract(visible, unseen), _whole(ctx, 0)).output(0)
    visible = ops.select(is_real, visible, _whole(ctx, 0)).output(0)
    return _Rows(
        count, capacity, sequence, visible, starts, table, page_size, pages, cache_rows
    )  # fmt: skip


def _before(ctx: Context, ends: ov.Output, batch: int) -> ov.Output:
    """Returns the start of each sequence, from cumulative lengths."""
    zero = _vector(ctx, [0])
    if batch == 1:
        return zero
    return ops.concat([zero, _take(ctx, ends, ctx.integers(list(range(batch - 1))))], 0).output(0)


def _lengths(ctx: Context, given: Any, batch: int, default: int) -> ov.Output:
    return _vector(ctx, np.full(batch, default)) if given is None else ctx.get(given, _INT)


def _below(ctx: Context, positions: ov.Output, rows: _Rows) -> ov.Output:
    return ops.less(positions, ctx.unsqueeze(rows.visible, [1])).output(0)


@converter(npu.lightning_indexer.default, host_is_better=True)
def convert_lightning_indexer(
    ctx: Context,
    query: fx.Node,
    key: fx.Node,
    weights: fx.Node,
    sparse_count: int,
    query_dequant_scale: Any,
    key_dequant_scale: Any,
    **layout: Any,
) -> Any:
    if query_dequant_scale is not None or key_dequant_scale is not None:
        ctx.refuse("int8 with scales: the host kernel supports it")
    rows = _address(ctx, query, key, **layout)
    *_, heads, width = (int(size or 0) for size in ctx.sizes(query))
    positions = ctx.unsqueeze(_vector(ctx, np.arange(rows.capacity)), [0])
    is_visible = _below(ctx, positions, rows)
    found = _scores(ctx, query, key, weights, rows, heads, width)
    if rows.table is not None or layout["layout_query"] == "TND":
        found = ops.gather_elements(found, _every(ctx, rows, positions), 1).output(0)
    unseen = ctx.number(float("-inf"), _FLOAT)
    found = ops.select(is_visible, found, unseen).output(0)
    if nan.is_exact(ctx):
        found = nan.extreme_keys(ctx, found, is_top=True)
    count = min(sparse_count, rows.capacity)
    # Unseen positions are last, and TopK prefers the first of equal scores: they come after every
    # seen position with any score.
    best = ops.topk(
        found, ctx.number(count, torch.int64), 1, "max", "value", index_element_type="i32",
        stable=True,
    )  # fmt: skip
    rising = _rising(ctx, best.output(1), count)
    none = _whole(ctx, -1)
    picked = ops.select(_below(ctx, rising, rows), rising, none).output(0)
    if count < sparse_count:
        fill = _vector(ctx, np.full((rows.count, sparse_count - count), -1))
        picked = ops.concat([picked, fill], 1).output(0)
    outer = [int(size or 0) for size in ctx.sizes(query)[:-2]]
    return ctx.reshape(picked, [*outer, 1, sparse_count])


def _rising(ctx: Context, picked: ov.Output, count: int) -> ov.Output:
    """Sorts positions in ascending order; float32 represents every position of a cache exactly."""
    negative = ops.negative(ops.convert(picked, ov.Type.f32))
    best = ops.topk(negative, ctx.number(count, torch.int64), 1, "max", "value")
    return ops.convert(ops.negative(best.output(0)), ov.Type.i32).output(0)


def _every(ctx: Context, rows: _Rows, positions: ov.Output) -> ov.Output:
    """Returns flat cache rows of all positions of each row's sequence: (rows, capacity)."""
    shape = ctx.integers([rows.count, rows.capacity])
    return rows.flat(ctx, ops.broadcast(positions, shape).output(0))


def _scores(
    ctx: Context,
    query: fx.Node,
    key: fx.Node,
    weights: fx.Node,
    rows: _Rows,
    heads: int,
    width: int,
) -> ov.Output:
    """Returns (rows, positions) scores, or (rows, flat cache rows) if layouts differ."""
    is_shared = rows.table is not None or ctx.rank(query) == 3
    batch = 1 if is_shared else int(ctx.sizes(query)[0] or 0)
    q = ctx.reshape(ctx.get(query, _FLOAT), [batch, -1, width])
    k = ctx.reshape(ctx.get(key, _FLOAT), [batch, -1, width])
    found = ops.matmul(q, k, False, True).output(0)
    products = ops.relu(found).output(0)
    if nan.is_exact(ctx):
        products = nan.guarded(found, products)
    wide = rows.cache_rows // batch
    products = ctx.reshape(products, [rows.count, heads, wide])
    shares = ctx.reshape(ctx.get(weights, _FLOAT), [rows.count, heads, 1])
    return ops.reduce_sum(ops.multiply(products, shares), ctx.integers([1]), False).output(0)


@converter(npu.sparse_flash_attention.default, host_is_better=True)
def convert_sparse_flash_attention(
    ctx: Context,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    sparse_indices: fx.Node,
    scale_value: float,
    sparse_block_size: int,
    query_rope: Any,
    key_rope: Any,
    actual_seq_lengths_kv: Any,
    layout_kv: str,
    **layout: Any,
) -> Any:
    _static(ctx, value, sparse_indices, query_rope, key_rope)
    layout |= {"actual_seq_lengths_key": actual_seq_lengths_kv, "layout_key": layout_kv}
    rows = _address(ctx, query, key, **layout)
    count = int(ctx.sizes(sparse_indices)[-1] or 0)
    heads = int(ctx.sizes(query)[-2] or 0)
    blocks = ctx.reshape(ctx.get(sparse_indices, _INT), [rows.count, count, 1])
    within = _vector(ctx, np.arange(sparse_block_size).reshape(1, 1, -1))
    spread = ops.add(ops.multiply(blocks, _whole(ctx, sparse_block_size)), within).output(0)
    positions = ctx.reshape(spread, [rows.count, count * sparse_block_size])
    zero = _whole(ctx, 0)
    is_picked = ops.logical_and(
        ops.greater_equal(positions, zero), _below(ctx, positions, rows)
    ).output(0)
    at = rows.flat(ctx, ops.select(is_picked, positions, zero).output(0))
    is_row = ctx.unsqueeze(is_picked, [2])

    def fetched(cache: fx.Node) -> ov.Output:
        flat = ctx.reshape(ctx.get(cache), [rows.cache_rows, int(ctx.sizes(cache)[-1] or 0)])
        found = ctx.convert(_take(ctx, flat, at), _FLOAT)
        return ops.select(is_row, found, ctx.number(0.0, _FLOAT)).output(0)

    def of_heads(part: fx.Node) -> ov.Output:
        width = int(ctx.sizes(part)[-1] or 0)
        return ctx.reshape(ctx.get(part, _FLOAT), [rows.count, heads, width])

    scores = ops.matmul(of_heads(query), fetched(key), False, True).output(0)
    if query_rope is not None:
        turned = ops.matmul(of_heads(query_rope), fetched(key_rope), False, True)
        scores = ops.add(scores, turned).output(0)
    scores = ops.multiply(scores, ctx.number(scale_value, _FLOAT)).output(0)
    is_seen = ctx.unsqueeze(is_picked, [1])
    scores = ops.select(is_seen, scores, ctx.number(MASKED, _FLOAT)).output(0)
    y = ops.matmul(ops.softmax(scores, 2), fetched(value), False, False).output(0)
    is_live = ops.reduce_logical_or(is_seen, ctx.integers([2]), True)
    y = ops.select(is_live, y, ctx.number(0.0, _FLOAT)).output(0)
    outer = [int(size or 0) for size in ctx.sizes(query)[:-1]]
    return ctx.convert(ctx.reshape(y, [*outer, int(ctx.sizes(value)[-1] or 0)]), ctx.out_dtype())
