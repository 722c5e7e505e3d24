import gc
import json

import pytest
import torch

from npu_runtime import InputError
from npu_runtime.startup import memory_check


@pytest.fixture
def recording():
    torch.npu.record_memory_history()
    yield
    torch.npu.record_memory_history(False)


def test_a_snapshot_accounts_for_every_byte():
    gc.collect()  # nothing may be freed between the two readings
    kept = [torch.empty(size, dtype=torch.uint8, device="npu") for size in (10, 5000, 1 << 20)]
    segments = torch.npu.memory_snapshot()
    assert sum(s["total_size"] for s in segments) == torch.npu.memory_reserved()
    assert sum(s["allocated_size"] for s in segments) == torch.npu.memory_allocated()
    blocks = {b["address"]: b for s in segments for b in s["blocks"]}
    for tensor in kept:
        block = blocks[tensor.data_ptr()]
        assert block["state"] == "active_allocated"
        assert block["requested_size"] == tensor.numel()
        assert block["size"] >= tensor.numel()


def test_a_snapshot_has_the_stack_that_allocated(recording):
    tensor = torch.empty(12345, dtype=torch.uint8, device="npu")
    blocks = {b["address"]: b for s in torch.npu.memory_snapshot() for b in s["blocks"]}
    frames = blocks[tensor.data_ptr()]["frames"]
    assert any(frame["name"] == "test_a_snapshot_has_the_stack_that_allocated" for frame in frames)


def test_the_fraction_limits_the_pool():
    torch.npu.empty_cache()
    total = torch.npu.mem_get_info()[1]
    torch.npu.set_per_process_memory_fraction((torch.npu.memory_reserved() + (64 << 20)) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="set_per_process_memory_fraction allows"):
            torch.empty(128 << 20, dtype=torch.uint8, device="npu")
        assert torch.empty(16 << 20, dtype=torch.uint8, device="npu").numel() == 16 << 20
    finally:
        torch.npu.set_per_process_memory_fraction(1.0)
    assert torch.empty(128 << 20, dtype=torch.uint8, device="npu").numel() == 128 << 20


def test_the_fraction_is_told():
    assert torch.npu.get_per_process_memory_fraction() == 1.0
    torch.npu.set_per_process_memory_fraction(0.75, "npu:0")
    assert torch.npu.get_per_process_memory_fraction("npu") == 0.75
    torch.npu.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize(
    "old, new", [("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")]
)
def test_old_names_warn_and_give_the_new_ones_figure(old, new):
    with pytest.warns(FutureWarning, match=f"torch.npu.{new}"):
        value = getattr(torch.npu, old)()
    assert value == getattr(torch.npu, new)()


@pytest.mark.parametrize("name", ["reset_max_memory_allocated", "reset_max_memory_cached"])
def test_old_resets_warn_and_reset_all_peaks(name):
    torch.empty(1 << 22, device="npu")
    torch.npu.empty_cache()
    with pytest.warns(FutureWarning, match="resets all peaks"):
        getattr(torch.npu, name)()
    assert torch.npu.max_memory_allocated() == torch.npu.memory_allocated()
    assert torch.npu.max_memory_reserved() == torch.npu.memory_reserved()


@pytest.mark.parametrize("fraction", [-0.1, 1.5])
def test_a_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(InputError, match=str(fraction)) as caught:
        torch.npu.set_per_process_memory_fraction(fraction)
    assert caught.value.code == "memory-fraction"


def test_the_leak_report_names_size_count_and_place(recording):
    assert memory_check.leak_report() == ""
    kept = [torch.empty(1000, dtype=torch.uint8, device="npu") for _ in range(3)]
    report = memory_check.leak_report()
    assert "3,000 bytes of device memory in 3 blocks are still in use" in report
    assert "test_memory_reports.py" in report
    assert len(kept) == 3


def test_leaks_are_reported_at_exit_on_request(run_python):
    code = "import torch\nkept = torch.ones(300, device='npu')\ntorch.ones(5, device='npu')"
    asked = run_python(code, NPU_MEMORY_CHECK="1")
    assert "1,200 bytes of device memory in 1 blocks are still in use" in asked.stderr
    assert "<string>:2" in asked.stderr
    assert run_python(code).stderr == ""


def test_out_of_memory_leaves_a_snapshot_on_request(run_python, tmp_path):
    path = tmp_path / "oom.json"
    done = run_python(
        "import torch\nkept = torch.ones(300, device='npu')\n"
        "try:\n    torch.empty(1 << 44, device='npu')\n"
        "except torch.OutOfMemoryError:\n    print('raised')",
        NPU_OOM_SNAPSHOT=str(path),
    )
    assert done.stdout.strip() == "raised", done.stderr
    snapshot = json.loads(path.read_text())
    assert snapshot["requested_bytes"] == 4 << 44
    assert any(block["requested_size"] == 1200 for block in snapshot["live_blocks"])
