import gc
import itertools
import random
import threading

import pytest
import torch


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
