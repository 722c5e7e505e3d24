import gc

import pytest
import torch

from npu_llm.errors import ContextError
from npu_llm.kv_cache import blocks as module
from npu_llm.kv_cache.blocks import BlockPool, BlockTable, block_layout
from npu_ops.kernel_programs.execution import Execution, kernel_sets


@pytest.fixture
def pool(store):
    return BlockPool(store)


def test_blocks_come_as_slots_need_them(pool):
    table = BlockTable(pool)
    assert table.make_room(16)
    table.slots = 16
    assert table.make_room(1)
    assert not table.make_room(16)
    assert (len(table.blocks), pool.used) == (2, 2)


def test_a_fork_shares_until_it_is_written_to(pool, store):
    table = BlockTable(pool)
    table.make_room(40)
    table.slots = 40
    other = table.fork()
    assert (other.blocks, pool.used) == (table.blocks, 3)
    other.make_room(1)
    assert other.blocks[:2] == table.blocks[:2]
    assert other.blocks[2] != table.blocks[2]
    assert store.copies == 1
    table.make_room(1)  # the other no longer uses it
    assert store.copies == 1


def test_a_shared_block_of_which_nothing_counts_is_not_copied(pool, store):
    table = BlockTable(pool)
    table.make_room(32)
    table.slots = 32
    other = table.fork()
    other.slots = 16
    other.make_room(4)
    assert (store.copies, pool.used) == (0, 3)


def test_what_is_cut_off_is_free(pool):
    table = BlockTable(pool)
    table.make_room(100)
    table.crop(17)
    assert (len(table.blocks), pool.used) == (2, 2)
    table.crop(0)
    assert pool.used == 0


def test_a_table_that_is_garbage_gives_its_blocks_back(pool):
    table = BlockTable(pool)
    table.make_room(100)
    other = table.fork()
    table.slots = 100
    other = table.fork()
    del table
    gc.collect()
    assert pool.used == 7
    del other
    gc.collect()
    assert pool.used == 0


def test_an_exhausted_pool_says_so_and_goes_on(store):
    pool = BlockPool(store, most=3)
    first, second = BlockTable(pool), BlockTable(pool)
    first.make_room(32)
    with pytest.raises(ContextError, match="3 blocks in use, the maximum") as caught:
        second.make_room(32)
    assert caught.value.code == "cache-blocks"
    second.crop(0)
    first.crop(0)
    second.make_room(48)
    assert pool.used == 3


def test_memory_that_cannot_be_had_is_the_same(store, monkeypatch):
    pool = BlockPool(store)

    def refuse(_):
        raise MemoryError

    monkeypatch.setattr(store, "reserve", refuse)
    with pytest.raises(ContextError, match="memory is exhausted") as caught:
        pool.take()
    assert caught.value.code == "cache-blocks"
    monkeypatch.undo()
    assert pool.take() == 0


@pytest.fixture(autouse=True)
def forget():
    block_layout.cache_clear()
    yield
    block_layout.cache_clear()


def test_each_way_to_store_keys_and_values_has_its_own():
    assert len({block_layout(cache) for cache in ("float32", "bfloat16", "u8")}) == 3


@pytest.mark.parametrize("cache", ["float32", "bfloat16", "u8"])
def test_the_same_layout_has_the_same_digest(cache, monkeypatch):
    found = block_layout(cache)
    for kernel_set in kernel_sets():
        block_layout.cache_clear()
        monkeypatch.setattr(
            module,
            "Execution",
            lambda *arguments, at=kernel_set, **named: Execution(
                *arguments, **named, kernel_set=at
            ),
        )
        assert block_layout(cache) == found


@pytest.mark.parametrize("cache", ["float32", "bfloat16", "u8"])
def test_another_order_of_bytes_has_another_digest(cache, monkeypatch):
    found = block_layout(cache)

    class Swapped(Execution):
        """Has two channels in each other's place."""

        def read_blocks(self, ids):
            content = super().read_blocks(ids)
            wide = content.view(torch.int32)
            wide[:, [3, 4]] = wide[:, [4, 3]]
            return content

    monkeypatch.setattr(module, "Execution", Swapped)
    block_layout.cache_clear()
    assert block_layout(cache) != found
