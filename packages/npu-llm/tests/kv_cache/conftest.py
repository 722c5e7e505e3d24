"""A stand-in for a kernel program: its logits show the tokens that a row attends to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from npu_llm.kv_cache.blocks import BlockPool
from npu_llm.kv_cache.cache import step_inputs
from npu_llm.kv_cache.paged import PagedCache
from npu_ops.kernel_programs.program import BLOCK_SLOTS, Rows

VOCABULARY = 31


def logits_of(tokens: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
    """Logits (vocabulary,) that depend on each token, its place and its position."""
    generator = torch.Generator().manual_seed(hash((tuple(tokens), tuple(positions))) % 2**31)
    return torch.rand(VOCABULARY, generator=generator)


class FakeStore:
    """Keeps tokens and positions in blocks, as an execution keeps keys and values."""

    def __init__(self) -> None:
        self.content = torch.zeros(0, BLOCK_SLOTS, 2, dtype=torch.int64)
        self.block_bytes = BLOCK_SLOTS * 16
        self.rows: list[int] = []  # of each step
        self.copies = 0
        self.failing_step: int | None = None

    def step(self, rows: Rows) -> torch.Tensor:
        self.rows.append(len(rows.tokens))
        where = rows.block_tables[rows.sequences.long(), (rows.slots // BLOCK_SLOTS).long()].long()
        new = torch.stack([rows.tokens, rows.positions], 1)
        self.content[where, (rows.slots % BLOCK_SLOTS).long()] = new
        if self.failing_step == len(self.rows):
            raise KeyboardInterrupt
        logits = torch.empty(len(rows.kept), VOCABULARY)
        for index, row in enumerate(rows.kept.tolist()):
            table = rows.block_tables[rows.sequences[row].long()].long()
            seen = self.content[table].reshape(-1, 2)[: int(rows.slots[row]) + 1]
            logits[index] = logits_of(seen[:, 0].tolist(), seen[:, 1].tolist())
        return logits

    def reserve(self, blocks: int) -> None:
        more = torch.full((blocks - len(self.content), BLOCK_SLOTS, 2), -1)
        self.content = torch.cat([self.content, more])

    def copy_block(self, source: int, target: int) -> None:
        self.copies += 1
        self.content[target] = self.content[source]

    def read_blocks(self, ids: Sequence[int]) -> torch.Tensor:
        found = self.content[list(ids)]
        return found.view(torch.uint8).view(len(ids), self.block_bytes)

    def write_blocks(self, ids: Sequence[int], content: torch.Tensor) -> None:
        self.content[list(ids)] = content.view(torch.int64).view(len(ids), BLOCK_SLOTS, 2)


class Sequences:
    """A cache on a fake store, and its expected content: tokens and positions of each row."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.cache = PagedCache(pool, vocabulary=VOCABULARY, positions=1000)
        self.mask = torch.zeros(1, 0, dtype=torch.int64)

    def step(self, ids, *, mask=None, kept=0, positions=None):
        """Runs a step; returns logits, and the expected logits of every kept token."""
        ids = torch.as_tensor(ids)
        new = torch.ones_like(ids) if mask is None else torch.as_tensor(mask)
        past = self.mask if self.mask.shape[1] else new[:, :0]
        self.full = torch.cat([past, new], 1)
        values = step_inputs(
            ids, attention_mask=self.full, position_ids=positions, logits_to_keep=kept,
            past=self.cache.get_seq_length(), vocabulary=VOCABULARY,
        )  # fmt: skip
        logits = self.cache.step(values, "cpu")
        self.mask = self.full
        return logits


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def sequences(store):
    return Sequences(BlockPool(store))


@pytest.fixture(scope="session")
def expected_logits():
    """expected_logits(tokens, positions): the expected logits of a row that sees these tokens."""
    return lambda tokens, positions=None: logits_of(
        tokens, range(len(tokens)) if positions is None else positions
    )


@pytest.fixture
def limited(store):
    """limited(most): sequences in a pool of at most so many blocks."""
    return lambda most: Sequences(BlockPool(store, most=most))


@pytest.fixture
def beside():
    """Other sequences in the same pool."""
    return lambda sequences: Sequences(sequences.pool)
