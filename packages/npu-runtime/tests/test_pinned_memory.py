"""Pinned memory: torch's caching host allocator over a pool of device memory."""

import gc

import pytest
import torch

from npu_runtime import load_program, sim

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
SIZE_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def clean_pool():
    gc.collect()
    torch.accelerator.empty_host_cache()


def stats() -> dict[str, int]:
    return torch.npu.host_memory_stats()


def pinned(size_bytes: int = SIZE_BYTES) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)


def test_a_freed_block_is_used_again():
    first = pinned()
    address = first.data_ptr()
    del first
    assert pinned().data_ptr() == address


def test_figures_follow_what_is_held_and_what_is_kept():
    before = stats()
    tensor = pinned(SIZE_BYTES - 5)
    held = stats()
    assert held["active_requests.current"] == before["active_requests.current"] + 1
    assert held["active_bytes.current"] == before["active_bytes.current"] + SIZE_BYTES
    assert held["num_host_alloc"] == before["num_host_alloc"] + 1
    assert held["host_alloc_time.count"] == before["host_alloc_time.count"] + 1
    del tensor
    kept = stats()
    assert kept["active_bytes.current"] == before["active_bytes.current"]
    assert kept["allocated_bytes.current"] == before["allocated_bytes.current"] + SIZE_BYTES
    torch.accelerator.empty_host_cache()
    emptied = stats()
    assert emptied["allocated_bytes.current"] == before["allocated_bytes.current"]
    assert emptied["num_host_free"] == kept["num_host_free"] + 1
    assert emptied["host_free_time.count"] == kept["host_free_time.count"] + 1


def test_peaks_and_totals_can_be_reset():
    del_me = pinned()
    del del_me
    torch.accelerator.empty_host_cache()
    torch.npu.reset_peak_host_memory_stats()
    torch.npu.reset_accumulated_host_memory_stats()
    figures = stats()
    assert figures["allocated_bytes.peak"] == figures["allocated_bytes.current"]
    assert figures["allocated_bytes.allocated"] == figures["num_host_alloc"] == 0
    assert figures["allocated_bytes.freed"] == figures["num_host_free"] == 0


def test_pinned_memory_is_no_device_memory_in_the_figures():
    before = torch.npu.memory_allocated(), torch.npu.memory_reserved()
    tensor = pinned(8 << 20)
    assert (torch.npu.memory_allocated(), torch.npu.memory_reserved()) == before
    assert tensor.is_pinned()
    assert tensor.untyped_storage().is_pinned()


def test_the_nested_figures_are_the_flat_ones():
    nested = torch.npu.host_memory_stats_as_nested_dict()
    assert nested["allocations"]["current"] == stats()["allocations.current"]


@pytest.fixture
def add_one(save_model, add_one_model):
    return load_program(save_model(add_one_model), name="add_one", options=F32)


def test_a_block_that_pending_work_uses_is_not_handed_out(add_one):
    wrong = []
    with sim.delay(3000, 5000):
        for value in range(10):
            host = torch.full((64,), float(value), pin_memory=True)
            result = add_one.run([torch.npu.as_npu(host)])[0]
            del host
            other = torch.full((64,), -1.0, pin_memory=True)  # would take the block, were it free
            if not torch.equal(result.cpu(), torch.full((64,), value + 1.0)):
                wrong.append(value)
            del other
    assert wrong == []


def test_a_block_is_free_again_when_the_work_has_ended(add_one):
    torch.npu.synchronize()
    before = stats()["active_requests.current"]
    with sim.delay(3000, 5000):
        host = torch.zeros(64, pin_memory=True)
        result = add_one.run([torch.npu.as_npu(host)])[0]
        del host
    assert result.sum().item() == 64
    torch.npu.synchronize()
    pinned(100)  # freed blocks are looked at when memory is asked for
    assert stats()["active_requests.current"] == before


def test_too_much_is_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError, match="held by pinned tensors"):
        pinned(1 << 44)
    assert pinned(10).numel() == 10


def test_copies_from_and_to_pinned_memory():
    host = torch.arange(1000.0).pin_memory()
    device = host.to("npu", non_blocking=True)
    back = torch.empty(1000, pin_memory=True).copy_(device, non_blocking=True)
    torch.npu.synchronize()
    assert torch.equal(back, torch.arange(1000.0))


def test_an_empty_tensor_can_be_pinned():
    assert torch.empty(0).pin_memory().numel() == 0
    assert torch.empty(0, 3, pin_memory=True).shape == (0, 3)
