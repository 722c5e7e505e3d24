"""Every name of torch.accelerator on npu."""

import pytest
import torch


def test_the_accelerator_is_npu():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    assert torch.accelerator.device_count() == torch.npu.device_count()


def test_the_device_index_can_be_set_and_scoped():
    torch.accelerator.set_device_index(0)
    assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(None):
        assert torch.accelerator.current_device_index() == 0


def test_the_old_names_of_the_device_index_work_and_warn():
    with pytest.warns(FutureWarning, match="current_device_index"):
        assert torch.accelerator.current_device_idx() == 0
    with pytest.warns(FutureWarning, match="set_device_index"):
        torch.accelerator.set_device_idx(0)


@pytest.mark.parametrize(
    "use",
    [
        torch.accelerator.set_device_index,
        torch.accelerator.synchronize,
        torch.accelerator.memory_stats,
        torch.accelerator.get_memory_info,
        torch.accelerator.get_device_capability,
        lambda index: torch.accelerator.device_index(index).__enter__(),
    ],
)
def test_a_device_that_does_not_exist_is_an_error(use):
    count = torch.accelerator.device_count()
    with pytest.raises(RuntimeError, match=rf"device index {count} does not exist.*device-index"):
        use(count)


def test_the_capability_has_every_dtype_that_works():
    capability = torch.accelerator.get_device_capability()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.complex64):
        assert dtype in capability["supported_dtypes"]
        assert torch.ones(2, dtype=dtype, device="npu").sum().item() == 2


def test_streams_are_those_of_the_device():
    before = torch.accelerator.current_stream()
    stream = torch.Stream()
    assert stream.device == torch.device("npu:0")
    torch.accelerator.set_stream(stream)
    assert torch.accelerator.current_stream() == stream == torch.npu.current_stream()
    torch.accelerator.set_stream(before)
    torch.accelerator.synchronize()


def test_memory_is_counted():
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    before = torch.accelerator.memory_allocated()
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
    assert torch.accelerator.memory_allocated() == before + (1 << 20)
    del tensor
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() >= before + (1 << 20)
    assert torch.accelerator.max_memory_reserved() >= torch.accelerator.memory_reserved() > 0
    assert torch.accelerator.memory_stats()["allocation.all.allocated"] >= 1
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total


def test_the_caches_are_emptied():
    device = torch.empty(8 << 20, dtype=torch.uint8, device="npu")
    pinned = torch.empty(8 << 20, dtype=torch.uint8, pin_memory=True)
    del device, pinned
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    assert torch.accelerator.memory_reserved() < 8 << 20
    assert torch.npu.host_memory_stats()["allocated_bytes.current"] < 8 << 20


def test_every_public_name_was_tried():
    untried = set(torch.accelerator.__all__) - {
        "Graph",  # in test_graphs.py
        "current_accelerator",
        "current_device_idx",
        "current_device_index",
        "current_stream",
        "device_count",
        "device_index",
        "empty_cache",
        "empty_host_cache",
        "get_device_capability",
        "get_memory_info",
        "is_available",
        "max_memory_allocated",
        "max_memory_reserved",
        "memory_allocated",
        "memory_reserved",
        "memory_stats",
        "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
        "set_device_idx",
        "set_device_index",
        "set_stream",
        "synchronize",
    }
    assert untried == set()
