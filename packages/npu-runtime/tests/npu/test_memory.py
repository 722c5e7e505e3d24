"""Memory of torch.npu: counters, pools, snapshots and their history."""

import gc
import itertools
import pickle
import random
import threading

import pytest
import torch
from torch.cuda import _memory_viz

from npu_runtime import InputError


@pytest.fixture(autouse=True)
def clean_pool():
    gc.collect()
    torch.npu.empty_cache()


def allocated() -> int:
    gc.collect()
    return torch.npu.memory_allocated()


@pytest.mark.driver("openvino", "small blocks are rounded to pages where memory is protected")
def test_a_tensor_is_counted_while_it_lives():
    before = allocated()
    tensor = torch.empty(1000, device="npu")
    held = allocated() - before
    assert 4000 <= held <= 2 * 4096  # whole pages, where the driver protects memory by pages
    del tensor
    assert allocated() == before


@pytest.mark.parametrize("size_bytes", [1, 63, 64, 65, 512, 4095, 4096])
def test_small_blocks_start_on_64_bytes(size_bytes):
    tensors = [torch.empty(size_bytes, dtype=torch.uint8, device="npu") for _ in range(5)]
    assert {tensor.data_ptr() % 64 for tensor in tensors} == {0}


@pytest.mark.parametrize("size_bytes", [4097, 10_000, 1 << 20, (1 << 24) + 5])
def test_large_blocks_start_on_a_page(size_bytes):
    tensors = [torch.empty(size_bytes, dtype=torch.uint8, device="npu") for _ in range(3)]
    assert {tensor.data_ptr() % 4096 for tensor in tensors} == {0}


def test_blocks_never_overlap():
    chooser = random.Random(5)
    live: list[torch.Tensor] = []
    for _ in range(3000):
        if live and chooser.random() < 0.45:
            live.pop(chooser.randrange(len(live)))
        else:
            size = chooser.choice([1, 60, 64, 200, 1500, 4096, 5000, 70_000, 300_000])
            live.append(torch.empty(size, dtype=torch.uint8, device="npu"))
    ranges = sorted((tensor.data_ptr(), tensor.numel()) for tensor in live)
    for (start, size), (following, _) in itertools.pairwise(ranges):
        assert start + size <= following


def test_a_freed_block_is_used_again():
    first = torch.empty(1 << 20, device="npu")
    address = first.data_ptr()
    del first
    assert torch.empty(1 << 20, device="npu").data_ptr() == address


def test_at_most_an_eighth_is_lost_to_rounding():
    for size_bytes in range(4097, 3_000_000, 311_111):
        before = allocated()
        tensor = torch.empty(size_bytes, dtype=torch.uint8, device="npu")
        held = allocated() - before
        assert size_bytes <= held <= size_bytes * 9 / 8 + 4096
        del tensor


def test_empty_cache_gives_reserved_memory_back():
    tensor = torch.empty(32 << 20, dtype=torch.uint8, device="npu")
    del tensor
    gc.collect()
    reserved = torch.npu.memory_reserved()
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() <= reserved - (32 << 20)


def test_contents_survive_emptying_the_cache_around_them():
    kept = [torch.full((size,), float(size), device="npu") for size in (3, 500, 5000, 100_000)]
    gone = [torch.empty(size, device="npu") for size in (3, 500, 5000, 100_000)]
    del gone
    torch.npu.empty_cache()
    for tensor in kept:
        assert torch.equal(tensor.cpu(), torch.full((tensor.numel(),), float(tensor.numel())))


def test_peaks_hold_until_they_are_reset():
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.max_memory_allocated()
    tensor = torch.empty(8 << 20, dtype=torch.uint8, device="npu")
    del tensor
    gc.collect()
    assert torch.npu.max_memory_allocated() >= before + (8 << 20)
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == torch.npu.memory_allocated()


def test_counters_balance():
    torch.npu.reset_accumulated_memory_stats()
    start = torch.npu.memory_stats()["allocation.all.current"]
    tensors = [torch.empty(100 * index + 1, device="npu") for index in range(50)]
    del tensors
    gc.collect()
    stats = torch.npu.memory_stats()
    assert stats["allocation.all.current"] == start
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] >= 50


@pytest.mark.parametrize("size_bytes", [1 << 36, 1 << 44, 1 << 60])
def test_too_much_memory_is_torchs_error_with_the_figures(size_bytes):
    times = torch.npu.memory_stats()["num_ooms"]
    with pytest.raises(
        torch.OutOfMemoryError, match=r"tried to allocate .* GiB .*\[out-of-memory\]"
    ):
        torch.empty(size_bytes, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_stats()["num_ooms"] == times + 1
    assert torch.ones(3, device="npu").sum().item() == 3


def test_mem_get_info_is_the_machines_memory():
    free, total = torch.npu.mem_get_info()
    assert 0 < free <= total
    assert total == torch.accelerator.get_memory_info()[1]


def test_the_summary_shows_current_and_peak():
    tensor = torch.empty(4 << 20, dtype=torch.uint8, device="npu")
    summary = torch.npu.memory_summary()
    assert tensor.numel() == 4 << 20
    assert "allocated by tensors" in summary
    assert "4.0" in summary


def test_pinned_memory_is_cpu_memory_that_the_device_can_use():
    tensor = torch.arange(5000)
    pinned = tensor.pin_memory()
    assert pinned.device.type == "cpu"
    assert pinned.is_pinned()
    assert not tensor.is_pinned()
    assert torch.equal(pinned, tensor)


def test_threads_allocate_and_free_each_others_blocks():
    shared: list[torch.Tensor] = []
    lock = threading.Lock()
    wrong: list[float] = []

    def work(seed: int) -> None:
        chooser = random.Random(seed)
        for _ in range(400):
            value = chooser.random()
            tensor = torch.full((chooser.choice([3, 700, 9000]),), value, device="npu")
            with lock:
                shared.append(tensor)
                taken = shared.pop(chooser.randrange(len(shared)))
            if taken.cpu().unique().numel() != 1:
                wrong.append(value)

    before = allocated()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.clear()
    assert wrong == []
    assert allocated() == before


def test_ordinary_cpu_memory_stays_outside_the_pool():
    before = allocated()
    tensor = torch.empty(1 << 20)
    assert not tensor.is_pinned()
    assert allocated() == before


# The code of the page at pytorch.org/memory_viz.


@pytest.fixture
def record():
    yield torch.npu.memory._record_memory_history
    torch.npu.memory._record_memory_history(None)


def test_a_dump_is_read_by_torchs_viewer(record, tmp_path):
    record(max_entries=1000)
    kept = torch.empty(12345, dtype=torch.uint8, device="npu")
    torch.empty(1 << 20, device="npu")
    path = tmp_path / "snapshot.pickle"
    torch.npu.memory._dump_snapshot(str(path))
    snapshot = pickle.loads(path.read_bytes())
    assert kept.numel() == 12345
    assert f"segments: {len(snapshot['segments'])}" in _memory_viz.segsum(snapshot)
    assert "free completed" in _memory_viz.trace(snapshot)
    assert "Active Memory Timeline" in _memory_viz.trace_plot(snapshot)


def test_the_history_has_allocations_and_frees_in_order(record):
    record()
    tensor = torch.empty(54321, dtype=torch.uint8, device="npu")
    address = tensor.data_ptr()
    del tensor
    trace = torch.npu.memory._snapshot()["device_traces"][0]
    mine = [entry for entry in trace if entry.get("addr") == address]
    assert [entry["action"] for entry in mine] == ["alloc", "free_requested", "free_completed"]
    assert len({entry["size"] for entry in mine}) == 1
    assert any("test_the_history" in frame["name"] for frame in mine[0]["frames"])
    assert mine[0]["time_us"] <= mine[2]["time_us"]


def test_segments_and_the_end_of_memory_are_in_the_history(record):
    torch.npu.empty_cache()
    record()
    torch.empty(1 << 22, device="npu")
    torch.npu.empty_cache()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 44, device="npu")
    trace = torch.npu.memory._snapshot()["device_traces"][0]
    actions = [entry["action"] for entry in trace]
    assert actions.index("segment_alloc") < actions.index("segment_free") < actions.index("oom")
    assert trace[-1]["size"] == 4 << 44
    assert trace[-1]["device_free"] > 0


def test_only_the_latest_actions_are_kept(record):
    record(max_entries=4)
    for _ in range(10):
        torch.empty(100, device="npu")
    trace = torch.npu.memory._snapshot()["device_traces"][0]
    assert len(trace) <= 2 * 4  # a free is two entries


def test_the_state_alone_keeps_no_history(record):
    record("state")
    tensor = torch.empty(4321, dtype=torch.uint8, device="npu")
    snapshot = torch.npu.memory._snapshot()
    assert not any(snapshot["device_traces"])
    blocks = {b["address"]: b for s in snapshot["segments"] for b in s["blocks"]}
    assert blocks[tensor.data_ptr()]["frames"]


def test_blocks_of_a_snapshot_fill_their_segments(record):
    kept = [torch.empty(size, device="npu") for size in (1, 100, 5000, 100_000)]
    for segment in torch.npu.memory._snapshot()["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    assert len(kept) == 4


def test_traces_can_be_left_out():
    torch.npu.record_memory_history()
    tensor = torch.empty(77, device="npu")
    segments = torch.npu.memory_snapshot(include_traces=False)
    torch.npu.record_memory_history(False)
    blocks = {b["address"]: b for s in segments for b in s["blocks"]}
    assert blocks[tensor.data_ptr()]["frames"] == []


@pytest.mark.parametrize("arguments", [{"enabled": "some"}, {"skip_actions": ["alloc"]}])
def test_what_it_cannot_do_is_refused(record, arguments):
    with pytest.raises(InputError, match="`enabled` must be") as caught:
        record(**arguments)
    assert caught.value.code == "memory-history"


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
    with pytest.raises(InputError, match=r"`allocator` must be None.*write a driver") as caught:
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
    with pytest.raises(TypeError, match="`stream` must be"):
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
