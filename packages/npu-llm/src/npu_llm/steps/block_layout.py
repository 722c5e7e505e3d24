"""How keys and values lie in a block, as a digest: what is stored of tokens whose values are known.

The kernels choose the layout, for the processor's instructions, and may do so in another way in
another version. A digest of what they write needs no name that somebody must remember to change.
"""

from __future__ import annotations

import functools
import hashlib

import torch

from npu_ops.kernel_programs.execution import CacheKind, Execution
from npu_ops.kernel_programs.program import (
    BLOCK_SLOTS,
    Append,
    Attend,
    Columns,
    Embed,
    KernelProgram,
    LayerShape,
    Rows,
)
from npu_ops.kernel_programs.sparse_attention import SparseAttention
from npu_ops.kernel_programs.weights import pack

__all__ = ["block_layout"]

# Heads, and channels of their keys and values: multiples of 16, so that nothing is left unwritten.
_HEADS, _KEY, _VALUE = 2, 32, 16


@functools.cache
def block_layout(cache: CacheKind, sparse_attention: SparseAttention | None = None) -> str:
    """Returns a digest of how blocks hold keys and values, and the bounds of keys.

    Args:
        cache: what they are stored as.
        sparse_attention: what chooses among blocks by their bounds; None for blocks without.
    """
    keys, values = _HEADS * _KEY, _HEADS * _VALUE
    token = Columns(0, 0, keys + values)
    program = KernelProgram(
        instructions=(
            Embed(out=token, table="table"),
            Append(layer=0, keys=Columns(0, 0, keys), values=Columns(0, keys, values)),
            Append(layer=1, keys=Columns(0, values, keys), values=Columns(0, 0, values)),
            *(
                Attend(
                    layer=layer,
                    heads=_HEADS,
                    queries=Columns(0, 0, keys),
                    out=Columns(1, 0, values),
                    scale=1.0,
                )
                for layer in range(2)
            ),
        ),
        widths=(keys + values, values),
        weights={},
        layers=(LayerShape(_HEADS, _KEY, _VALUE),) * 2,
        logits=token,
        vocabulary=BLOCK_SLOTS,
    )
    # Whole numbers that bfloat16 has, and no two slots or channels alike.
    numbers = torch.arange(BLOCK_SLOTS)[:, None] * 31 + torch.arange(keys + values) * 7
    table = (numbers % 251 - 125).float()
    weights = {"table": pack(table, "float32")}
    execution = Execution(program, weights, cache=cache, sparse_attention=sparse_attention)
    execution.reserve(1)
    slots = torch.arange(BLOCK_SLOTS, dtype=torch.int32)
    execution.step(
        Rows(
            tokens=slots.long(),
            positions=slots.long(),
            sequences=torch.zeros_like(slots),
            slots=slots,
            block_tables=torch.zeros(1, 1, dtype=torch.int32),
            kept=slots.long(),
        )
    )
    return hashlib.sha256(execution.read_blocks([0]).numpy().tobytes()).hexdigest()[:16]
