"""Blocks of a paged KV cache: the pool, the block table of each sequence, and the layout's digest.

A block contains the keys and values of BLOCK_SLOTS tokens in all layers. Sequences with a common
prefix share its blocks; a shared block is copied on write.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npu_llm.errors import ContextError
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

__all__ = [
    "BlockPool",
    "BlockTable",
    "as_matrix",
    "block_layout",
    "build_rows",
    "run_rows",
]

# Number of blocks added at once, the size of a piece in npu_ops.kernel_programs.execution.
_GROWTH = 16
# Maximum rows per run. More are not faster, and interrupts are handled between runs.
_PIECE = 512


class BlockPool:
    """The block pool of one program; thread-safe.

    Attributes:
        store: memory of the blocks.
        most: maximum number of blocks that fit into memory; None to allocate until the system
            fails.
    """

    def __init__(self, store: Execution, *, most: int | None = None) -> None:
        self.store = store
        self.most = most
        self._uses: list[int] = []  # per block; 0 for a free one
        self._free: list[int] = []
        # Blocks of garbage-collected tables: their finalizers may run anywhere, including here.
        self._dropped: deque[list[int]] = deque()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Number of blocks in use."""
        with self._lock:
            self._collect()
            return len(self._uses) - len(self._free)

    def take(self) -> int:
        """Returns a free block with a reference count of 1.

        Raises:
            ContextError: [cache-blocks] if no block is free and none can be added.
        """
        with self._lock:
            self._collect()
            if not self._free:
                self._grow()
            block = self._free.pop()
            self._uses[block] = 1
            return block

    def share(self, blocks: Iterable[int]) -> None:
        """Increments a block's reference count."""
        with self._lock:
            for block in blocks:
                self._uses[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Decrements a block's reference count."""
        with self._lock:
            self._release(blocks)

    def is_shared(self, block: int) -> bool:
        """Whether a block's reference count exceeds 1."""
        with self._lock:
            self._collect()
            return self._uses[block] > 1

    def drop(self, blocks: list[int]) -> None:
        """Releases blocks later; for finalizers, because it takes no lock."""
        self._dropped.append(blocks)

    def _collect(self) -> None:
        while self._dropped:
            self._release(self._dropped.popleft())

    def _release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._uses[block] -= 1
            if self._uses[block] == 0:
                self._free.append(block)

    def _grow(self) -> None:
        held = len(self._uses)
        wanted = held + _GROWTH if self.most is None else min(held + _GROWTH, self.most)
        if wanted <= held:
            raise _exhausted(held, "the maximum that fits into memory")
        try:
            self.store.reserve(wanted)
        except (MemoryError, RuntimeError) as failure:  # torch raises the latter
            raise _exhausted(held, "and memory is exhausted") from failure
        self._uses += [0] * (wanted - held)
        self._free += range(wanted - 1, held - 1, -1)


class BlockTable:
    """The block table of one sequence; releases its blocks when garbage-collected.

    Attributes:
        blocks: its blocks in slot order; the last ones may be beyond `slots`.
        slots: number of slots with a token.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []
        self.slots = 0
        weakref.finalize(self, pool.drop, self.blocks).atexit = False

    def make_room(self, count: int) -> bool:
        """Prepares the next slots for writing; shared blocks are copied.

        Args:
            count: number of slots.

        Returns:
            Whether `blocks` changed.

        Raises:
            ContextError: [cache-blocks]; existing slots are unchanged.
        """
        first, end = self.slots // BLOCK_SLOTS, -(-(self.slots + count) // BLOCK_SLOTS)
        changed = False
        for index in range(first, min(end, len(self.blocks))):
            changed |= self._own(index)
        while len(self.blocks) < end:
            self.blocks.append(self._pool.take())
            changed = True
        return changed

    def crop(self, slots: int) -> None:
        """Keeps the first slots, at most the current number, and releases other blocks."""
        self.slots = slots
        kept = -(-slots // BLOCK_SLOTS)
        released = self.blocks[kept:]
        del self.blocks[kept:]
        self._pool.release(released)

    def fork(self) -> BlockTable:
        """Returns another table that shares the same slots."""
        other = BlockTable(self._pool)
        held = self.blocks[: -(-self.slots // BLOCK_SLOTS)]
        self._pool.share(held)
        other.blocks += held
        other.slots = self.slots
        return other

    def _own(self, index: int) -> bool:
        """Replaces a shared block by a copy; returns whether it was shared."""
        shared = self.blocks[index]
        if not self._pool.is_shared(shared):
            return False
        own = self._pool.take()
        try:
            if self.slots > index * BLOCK_SLOTS:
                self._pool.store.copy_block(shared, own)
        except BaseException:
            self._pool.release([own])
            raise
        self.blocks[index] = own
        self._pool.release([shared])
        return True


def build_rows(
    tables: Sequence[BlockTable],
    counts: Sequence[int],
    tokens: Any,
    *,
    kept: Any,
    positions: Any | None = None,
    block_tables: Any | None = None,
) -> Rows:
    """Returns the batch of a step that appends tokens to several sequences.

    All arrays are numpy's, or tensors on cpu.

    Args:
        tables: one for each sequence, with room for its tokens.
        counts: number of new tokens of each sequence.
        tokens: (sum of counts,) int64, sequence by sequence.
        kept: (kept,) int64, ascending indices of the tokens whose logits are returned.
        positions: (sum of counts,) int64; None to use the slots.
        block_tables: (sequences, most blocks) int32 of the same tables; None to compute it.
    """
    if len(tables) == 1:
        sequences = np.zeros(counts[0], np.int32)
        slots = np.arange(tables[0].slots, tables[0].slots + counts[0], dtype=np.int32)
    else:
        sequences = np.repeat(np.arange(len(tables), dtype=np.int32), counts)
        starts = np.array([table.slots for table in tables], np.int32)
        within = np.arange(len(tokens), dtype=np.int32) - np.repeat(
            np.cumsum(counts, dtype=np.int32) - np.array(counts, np.int32), counts
        )
        slots = np.repeat(starts, counts) + within
    if positions is None:
        positions = _like(tokens, slots.astype(np.int64))
    if block_tables is None:
        block_tables = _like(tokens, as_matrix([table.blocks for table in tables]))
    return Rows(
        tokens=tokens,
        positions=positions,
        sequences=_like(tokens, sequences),
        slots=_like(tokens, slots),
        block_tables=block_tables,
        kept=kept,
        is_decode=all(count <= 1 for count in counts),
    )


def _like(tokens: Any, array: np.ndarray[Any, Any]) -> Any:
    """Returns an array, as a tensor if the tokens are a tensor."""
    if isinstance(tokens, np.ndarray):
        return array
    import torch

    return torch.from_numpy(array)


def run_rows(store: Execution, rows: Rows) -> Any:
    """Runs a step in pieces of at most 512 tokens; returns logits (kept, vocabulary) float32."""
    total = len(rows.tokens)
    if total <= _PIECE:
        return store.step(rows)
    found = []
    for start in range(0, total, _PIECE):
        end = min(start + _PIECE, total)
        piece = replace(
            rows,
            tokens=rows.tokens[start:end],
            positions=rows.positions[start:end],
            sequences=rows.sequences[start:end],
            slots=rows.slots[start:end],
            kept=rows.kept[(rows.kept >= start) & (rows.kept < end)] - start,
        )
        found.append(store.step(piece))
    if isinstance(rows.tokens, np.ndarray):
        return np.concatenate(found)
    import torch

    return torch.cat(found)


def as_matrix(tables: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
    """Returns lists of blocks as (sequences, most blocks) int32, padded with block 0."""
    most = max((len(table) for table in tables), default=0)
    filled = [[*table, *[0] * (most - len(table))] for table in tables]
    return np.array(filled, np.int32).reshape(len(tables), most)


def _exhausted(held: int, reason: str) -> ContextError:
    return ContextError(
        f"`cache` must find a free block of {BLOCK_SLOTS} tokens, got {held:,} blocks in use, "
        f"{reason}. Release caches of other generations, or use fewer or shorter sequences.",
        code="cache-blocks",
    )


# Heads, and channels of their keys and values: multiples of 16, so that every element is written.
_HEADS, _KEY, _VALUE = 2, 32, 16


@functools.cache
def block_layout(cache: CacheKind, sparse_attention: SparseAttention | None = None) -> str:
    """Returns a digest of the memory layout of keys, values and key bounds in a block.

    Args:
        cache: storage type of keys and values.
        sparse_attention: selection of blocks by their key bounds; None for blocks without bounds.
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
    # Whole numbers that bfloat16 represents; all slots and channels differ.
    import torch

    from npu_ops.kernel_programs.weights import pack

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
