import gc
import threading

import pytest
import torch

from npu_runtime import InputError


@pytest.fixture(autouse=True)
def clean_pool():
    gc.collect()
    torch.npu.empty_cache()


def addresses(segments: list[dict]) -> set[int]:
    return {
        block["address"]
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def test_a_pools_memory_serves_nobody_else():
    pool = torch.npu.MemPool()
    with torch.npu.use_mem_pool(pool):
        inside = torch.empty(1 << 20, device="npu")
    address = inside.data_ptr()
    outside = torch.empty(1 << 20, device="npu")
    assert addresses(pool.snapshot()) == {address}
    assert outside.data_ptr() not in addresses(pool.snapshot())
    del inside
    assert torch.empty(1 << 20, device="npu").data_ptr() != address
    with torch.npu.use_mem_pool(pool):
        assert torch.empty(1 << 20, device="npu").data_ptr() == address


def test_small_blocks_have_segments_of_their_own_too():
    pool = torch.npu.MemPool()
    with torch.npu.use_mem_pool(pool):
        inside = [torch.full((10,), float(value), device="npu") for value in range(50)]
    outside = [torch.zeros(10, device="npu") for _ in range(50)]
    assert addresses(pool.snapshot()) == {tensor.data_ptr() for tensor in inside}
    assert [tensor[3].item() for tensor in inside] == [float(value) for value in range(50)]
    assert len(outside) == 50


def test_a_pools_memory_counts_as_the_devices():
    before = torch.npu.memory_allocated()
    with torch.npu.use_mem_pool(torch.npu.MemPool()):
        tensor = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_allocated() == before + (1 << 20)
    assert addresses(torch.npu.memory_snapshot()) >= {tensor.data_ptr()}


def test_memory_outlives_its_pool_and_then_goes_back_to_the_system():
    pool = torch.npu.MemPool()
    pool_id = pool.id
    with torch.npu.use_mem_pool(pool):
        kept = torch.full((1 << 18,), 3.0, device="npu")
        gone = torch.empty(1 << 20, device="npu")
    del gone, pool
    gc.collect()
    assert kept[-1].item() == 3
    assert len(torch.npu.memory_snapshot(pool_id)) == 1
    del kept
    assert torch.npu.memory_snapshot(pool_id) == []


def test_the_cache_of_a_pool_that_is_held_stays():
    pool = torch.npu.MemPool()
    with torch.npu.use_mem_pool(pool):
        torch.empty(1 << 20, device="npu")
    torch.npu.empty_cache()
    assert len(pool.snapshot()) == 1


def test_users_are_counted():
    pool = torch.npu.MemPool()
    assert pool.use_count() == 1
    with torch.npu.use_mem_pool(pool), torch.npu.use_mem_pool(pool):
        assert pool.use_count() == 3
    assert pool.use_count() == 1


def test_pools_nest_and_ids_differ():
    outer, inner = torch.npu.MemPool(), torch.npu.MemPool()
    assert outer.id != inner.id
    with torch.npu.use_mem_pool(outer):
        with torch.npu.use_mem_pool(inner):
            first = torch.empty(1 << 20, device="npu")
        second = torch.empty(1 << 20, device="npu")
    assert addresses(inner.snapshot()) == {first.data_ptr()}
    assert addresses(outer.snapshot()) == {second.data_ptr()}


def test_other_threads_allocate_as_before():
    pool = torch.npu.MemPool()
    made: list[torch.Tensor] = []
    with torch.npu.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: made.append(torch.empty(1 << 20, device="npu")))
        thread.start()
        thread.join()
    assert pool.snapshot() == []
    assert len(made) == 1


def test_an_error_inside_ends_the_use():
    pool = torch.npu.MemPool()
    with pytest.raises(KeyError), torch.npu.use_mem_pool(pool):
        raise KeyError
    torch.empty(1 << 20, device="npu")
    assert pool.snapshot() == []


@pytest.fixture
def narrow():
    """The pool may have 64 MiB more than it has."""
    total = torch.npu.mem_get_info()[1]
    torch.npu.set_per_process_memory_fraction((torch.npu.memory_reserved() + (64 << 20)) / total)
    yield
    torch.npu.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("use_on_oom", [True, False])
def test_only_a_pool_of_last_resort_helps_out(narrow, use_on_oom):
    pool = torch.npu.MemPool(use_on_oom=use_on_oom)
    with torch.npu.use_mem_pool(pool):
        torch.empty(48 << 20, dtype=torch.uint8, device="npu")
    if use_on_oom:
        assert torch.empty(48 << 20, dtype=torch.uint8, device="npu").numel() == 48 << 20
    else:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(48 << 20, dtype=torch.uint8, device="npu")


def test_an_allocator_of_ones_own_is_refused():
    with pytest.raises(InputError, match=r"allocator must be None.*write a driver") as caught:
        torch.npu.MemPool(object())
    assert caught.value.code == "memory-pool"


def test_raw_memory_is_device_memory_until_it_is_deleted():
    before = torch.npu.memory_allocated()
    address = torch.npu.caching_allocator_alloc(1 << 20, stream=torch.npu.current_stream())
    assert torch.npu.memory_allocated() == before + (1 << 20)
    assert address in addresses(torch.npu.memory_snapshot())
    torch.npu.caching_allocator_delete(address)
    assert torch.npu.memory_allocated() == before
    with pytest.raises(InputError, match="deleted once") as caught:
        torch.npu.caching_allocator_delete(address)
    assert caught.value.code == "not-device-memory"


def test_raw_memory_of_no_bytes_is_a_null_pointer():
    assert torch.npu.caching_allocator_alloc(0) == 0
    torch.npu.caching_allocator_delete(0)


def test_raw_memory_takes_the_handle_of_a_stream():
    stream = torch.npu.Stream()
    torch.npu.caching_allocator_delete(
        torch.npu.caching_allocator_alloc(100, 0, stream.native_handle)
    )
    with pytest.raises(TypeError, match="stream must be"):
        torch.npu.caching_allocator_alloc(100, stream="first")
    with pytest.raises(InputError, match="-1") as caught:
        torch.npu.caching_allocator_alloc(-1)
    assert caught.value.code == "memory-size"


def test_without_the_cache_freed_memory_goes_back_at_once():
    reserved = torch.npu.memory_reserved()
    with torch.npu.caching_allocator_disabled():
        for size in (100, 1 << 20):
            tensor = torch.empty(size, device="npu")
            assert torch.npu.memory_reserved() > reserved
            del tensor
            assert torch.npu.memory_reserved() == reserved
    tensor = torch.empty(1 << 20, device="npu")
    del tensor
    assert torch.npu.memory_reserved() > reserved


def test_the_backend_is_torchs_word_for_a_pool():
    assert torch.npu.get_allocator_backend() == "native"
