"""Attention over the positions that an indexer picks: `torch.ops.npu.lightning_indexer` and others.

A module has the op's schema, its formula with the source, what it takes and raises, and `reference`
(the same in plain torch). Kernels and fakes are in csrc/sparse_attention.

Layouts, in both ops: "BSND" (batch, length, heads, width), lengths (batch,) or none; "TND" (tokens,
heads, width), all sequences one after the other, lengths as running sums (batch,); "PA_BSND" for
caches (pages, positions of a page, 1, width), where position j of sequence b is at
`block_table[b, j // page]`, slot `j % page`, lengths (batch,). A page has one position
or more. Lengths and tables are int32 or int64. Positions beyond a length are padding: nothing reads
them.

sparse_mode 3 is causal, the last query sees all keys: query s of n sees the first
`keys - (n - 1 - s)`. With 0 each sees all.
"""

from npu_ops.sparse_attention import (
    lightning_indexer,
    sparse_attention,
    sparse_flash_attention,
)

__all__ = ["lightning_indexer", "sparse_attention", "sparse_flash_attention"]
