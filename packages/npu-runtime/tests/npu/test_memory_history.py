import pickle

import pytest
import torch

# What draws the page at pytorch.org/memory_viz.
from torch.cuda import _memory_viz

from npu_runtime import InputError


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
    with pytest.raises(InputError, match="enabled must be") as caught:
        record(**arguments)
    assert caught.value.code == "memory-history"
