"""Sparse attention over positions that an indexer selects: `torch.ops.npu.lightning_indexer` etc.

A module has the op's schema, formula with source, arguments, errors, and `reference` (the same in
plain torch). Kernels and fakes are in csrc/sparse_attention.

Layouts, in both ops: "BSND" (batch, length, heads, width), lengths (batch,) or none; "TND" (tokens,
heads, width), concatenated sequences, lengths as cumulative sums (batch,); "PA_BSND" for
caches (pages, positions of a page, 1, width), where position j of sequence b is at
`block_table[b, j // page]`, slot `j % page`, lengths (batch,). A page has one position
or more. Lengths and tables are int32 or int64. Positions beyond a length are padding and not read.

sparse_mode 3 is causal, aligned at the end: query s of n attends to the first `keys - (n - 1 - s)`
keys. With 0, each query attends to all keys.
"""

from npu_ops.sparse_attention import (
    lightning_indexer,
    sparse_attention,
    sparse_flash_attention,
)

__all__ = ["lightning_indexer", "sparse_attention", "sparse_flash_attention"]
