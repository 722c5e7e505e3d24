"""PagedStore: sequences on the blocks of a kernel program, any number of them in one step."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any

import numpy as np
import torch

from npu_llm.errors import ContextError
from npu_llm.kv_cache.blocks import BlockPool, BlockTable
from npu_llm.serving.scheduling.prefix_tree import PrefixTree
from npu_llm.serving.scheduling.sequence import Sequence
from npu_llm.serving.scheduling.stores import Piece, Usage
from npu_ops.kernel_programs.program import BLOCK_SLOTS, Rows

__all__ = ["PagedStore"]


class PagedStore:
    """The cache of a model whose steps take rows of any sequences."""

    most_sequences: int | None = None

    def __init__(self, pool: BlockPool, *, blocks: int | None = None) -> None:
        """Takes a program's blocks.

        Args:
            pool: has the blocks; the store limits how many it has.
            blocks: how many there may be; None for as many as the pool allows.
        """
        if blocks is not None:
            pool.most = blocks if pool.most is None else min(pool.most, blocks)
        self.tree = PrefixTree(pool)
        self._pool = pool
        self._tables: dict[int, BlockTable] = {}

    def fits(self, tokens: int) -> bool:
        """Whether all blocks together hold so many tokens."""
        return self._pool.most is None or _blocks(tokens) <= self._pool.most

    def begin(self, sequence: Sequence, *, spare: int) -> bool:
        """See npu_llm.serving.scheduling.stores.SequenceStore."""
        table = BlockTable(self._pool)
        # The last token is always read: what follows it is asked for.
        table.blocks += self.tree.find(sequence.tokens[:-1])
        table.slots = len(table.blocks) * BLOCK_SLOTS
        needed = _blocks(len(sequence.tokens)) - len(table.blocks)
        if not self._has_left(needed + spare) or not self._room(
            table, len(sequence.tokens) - table.slots
        ):
            table.crop(0)
            return False
        sequence.read = table.slots
        self._tables[sequence.number] = table
        return True

    def grow(self, sequence: Sequence) -> bool:
        """See npu_llm.serving.scheduling.stores.SequenceStore."""
        return self._room(self._tables[sequence.number], sequence.pending)

    def run(self, pieces: Several[Piece]) -> torch.Tensor:
        """Reads pieces in one step; see npu_llm.serving.scheduling.stores.SequenceStore."""
        tokens: list[int] = []
        places: list[int] = []
        owners: list[int] = []
        kept: list[int] = []
        tables = [self._tables[piece.sequence.number] for piece in pieces]
        for index, piece in enumerate(pieces):
            start, end = piece.sequence.read, piece.sequence.read + piece.count
            tokens += piece.sequence.tokens[start:end]
            places += range(start, end)
            owners += [index] * piece.count
            if piece.is_last:
                kept.append(len(tokens) - 1)
        most = max(len(table.blocks) for table in tables)
        filled = [table.blocks + [0] * (most - len(table.blocks)) for table in tables]
        # No sequence has padding: its tokens' slots are their positions.
        logits = self._pool.store.step(
            Rows(
                tokens=_tensor(tokens, np.int64),
                positions=_tensor(places, np.int64),
                sequences=_tensor(owners, np.int32),
                slots=_tensor(places, np.int32),
                block_tables=_tensor(filled, np.int32),
                kept=_tensor(kept, np.int64),
            )
        )
        for piece, table in zip(pieces, tables, strict=True):
            table.slots += piece.count
            if piece.sequence.read // BLOCK_SLOTS != table.slots // BLOCK_SLOTS:
                self.tree.keep(piece.sequence.tokens[: table.slots], table.blocks)
        return logits

    def end(self, sequence: Sequence) -> None:
        """Releases a sequence's blocks; full ones stay in the tree until room is needed."""
        self._tables.pop(sequence.number).crop(0)

    def clear(self) -> None:
        """Releases the blocks of the tree."""
        self.tree.clear()

    def usage(self) -> Usage:
        """Returns how many blocks are in use, as shares of those there may be."""
        most = self._pool.most or max(self._pool.used, 1)
        idle = self.tree.idle()
        return Usage((self._pool.used - idle) / most, idle / most)

    def _has_left(self, blocks: int) -> bool:
        if self._pool.most is None:
            return True
        return self._pool.most - self._pool.used + self.tree.idle() >= blocks

    def _room(self, table: BlockTable, count: int) -> bool:
        while True:
            try:
                table.make_room(count)
            except ContextError:
                if not self.tree.release():
                    table.crop(table.slots)
                    return False
            else:
                return True


def _tensor(values: list[Any], dtype: type[np.signedinteger[Any]]) -> torch.Tensor:
    """Returns a tensor; torch.tensor would let other threads have Python's lock each time."""
    return torch.from_numpy(np.array(values, dtype))


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SLOTS)
