"""The compiler's log as an estimate and as a reason."""

import json

import pytest

from npu_compiler.target_compiler.report import (
    UNEXPLAINED,
    Layer,
    Task,
    read_estimate,
    read_reason,
    read_schedule,
)


def test_log_without_a_latency_has_no_estimate():
    assert read_estimate("[INFO] 00:00:00.0 [vpux-compiler] platform = NPU4000") is None


REFUSAL = """\
[ERROR] 00:00:00.1 [vpux-compiler] failed to legalize operation 'IE.Convolution'
[NPU_VCL] Compiler returned msg:
Compilation failed
\0
"""
CRASH = """\
wine: Unhandled division by zero at address 0000000002B3B288
Unhandled exception: divide by zero in 64-bit code (0x00000002b3b288).
"""


@pytest.mark.parametrize(
    "log, reason",
    [
        ("", UNEXPLAINED),
        (
            REFUSAL,
            "Compilation failed [vpux-compiler] failed to legalize operation 'IE.Convolution'",
        ),
        (CRASH, "Unhandled exception: divide by zero in 64-bit code"),
    ],
)
def test_reason_is_the_compilers_words_on_one_line(log, reason):
    assert read_reason(log) == reason


ROWS = [
    (0, 0, "DMA 0 DDR"),
    (1, 1, "DPU"),
    (1, 2, "DPU Variants"),
    (1, 3, "Shave0"),
    (1, 4, "Shave1"),
    (2, 5, "DPU"),
    (3, 6, "Layers"),
]
MATMUL = "linear/aten.linear.default/MatMul?t_MatMul/as_convolution"
GELU = "gelu/aten.gelu.default?t_Gelu"
ORIGINS = {"linear": ("blocks.0.up", "model.py:7"), "gelu": ("blocks.0", "model.py:8")}


def slice_at(thread, name, start_us, us, shape="[0xui8]"):
    process = next(pid for pid, tid, _ in ROWS if tid == thread)
    args = {"Input tensor shape": shape}
    times = {"ts": start_us, "dur": us}
    return {"name": name, "ph": "X", "pid": process, "tid": thread, **times, "args": args}


@pytest.fixture
def schedule(tmp_path):
    """The schedule of a product on two clusters, its activation on one, and the weights' load."""
    path = tmp_path / "schedule.json"
    rows = [
        {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
        for pid, tid, name in ROWS
    ]
    named = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Cluster (0)"}}
    slices = [
        slice_at(0, "fetch_dma", 0, 0.5),
        slice_at(0, f"{MATMUL}/cluster_0", 0.5, 1.5, "[2x512xui8]"),
        slice_at(0, f"{MATMUL}/cluster_1", 2, 1.5, "[2x512xui8]"),
        slice_at(1, f"{MATMUL}/cluster_0", 4, 2),
        slice_at(2, f"{MATMUL}/cluster_0/variant_0", 4, 2),
        slice_at(5, f"{MATMUL}/cluster_1", 4.25, 2),
        slice_at(1, f"{MATMUL}/cluster_0", 10, 1),
        slice_at(3, f"{GELU}/tile_0/cluster_0", 6.25, 1),
        slice_at(4, f"{GELU}/tile_1/cluster_0", 6.25, 0.75),
        slice_at(6, "gelu/aten.gelu.default", 6.25, 1),
    ]
    path.write_text(json.dumps({"traceEvents": [named, *rows, *slices]}))
    return path


def test_tasks_of_clusters_and_shaves_are_one_with_its_layer_module_and_line(schedule):
    found = read_schedule(schedule, ORIGINS)
    assert found.layers == (
        Layer("linear/aten.linear.default/MatMul", "MatMul", "blocks.0.up", "model.py:7"),
        Layer("gelu/aten.gelu.default", "Gelu", "blocks.0", "model.py:8"),
    )
    assert found.tasks == (
        Task("DMA 0 DDR", "fetch_dma", None, 0, 500, 1, 0),
        Task("DMA 0 DDR", f"{MATMUL}/cluster_0", 0, 500, 1500, 1, 1024),
        Task("DMA 0 DDR", f"{MATMUL}/cluster_1", 0, 2000, 1500, 1, 1024),
        Task("DPU", MATMUL, 0, 4000, 2250, 2),
        Task("SHAVE", GELU, 1, 6250, 1000, 2),
        Task("DPU", MATMUL, 0, 10000, 1000, 1),
    )


def test_a_layer_whose_call_is_not_known_has_no_module(schedule):
    (first, _) = read_schedule(schedule, {}).layers
    assert (first.module, first.line) == ("", "")


def test_a_schedule_is_json_with_the_fields_of_its_layers_and_tasks(schedule):
    found = json.loads(json.dumps(read_schedule(schedule, ORIGINS).as_dict()))
    assert found["layers"][1]["module"] == "blocks.0"
    assert found["tasks"][1] == {
        "row": "DMA 0 DDR", "name": f"{MATMUL}/cluster_0", "layer": 0, "start_ns": 500,
        "duration_ns": 1500, "parts": 1, "moved_bytes": 1024,
    }  # fmt: skip


@pytest.mark.parametrize("content", ["", "{}", '{"traceEvents": [{"name": 5}]}'])
def test_a_trace_that_is_not_as_expected_has_no_schedule(tmp_path, content):
    path = tmp_path / "schedule.json"
    path.write_text(content)
    assert read_schedule(path, {}) is None
