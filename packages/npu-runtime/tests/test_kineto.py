"""The device in torch's profiler. Drivers, ends, late imports: test_kineto_processes.py."""

import json
import threading
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from npu_runtime import load_program

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


@pytest.fixture
def export(tmp_path, read_trace):
    """Exports a finished profile and reads it."""

    def run(profiler: profile) -> Any:
        path = tmp_path / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read_trace(path.read_text())

    return run


@pytest.fixture
def program(save_model, add_one_model):
    return load_program(save_model(add_one_model), name="add_one", options=F32)


@pytest.fixture
def x():
    return torch.ones(64, device="npu")


def device_events(profiler):
    return [event for event in profiler.events() if event.device_type == DeviceType.PrivateUse1]


def test_torch_offers_the_device_to_profile():
    assert ProfilerActivity.PrivateUse1 in torch.profiler.supported_activities()


def test_a_run_is_a_device_event_of_the_op_around_it(program, x):
    with profile(activities=BOTH) as profiler:
        program.run([x])
    (event,) = device_events(profiler)
    assert event.name == "add_one"
    assert event.device_index == 0
    assert event.device_time_total > 0
    (op,) = [event for event in profiler.events() if event.name == "npu::program add_one"]
    assert [kernel.name for kernel in op.kernels] == ["add_one"]
    assert op.device_time_total == pytest.approx(event.device_time_total)


def test_the_table_has_columns_of_npu_time(program, x):
    with profile(activities=BOTH) as profiler:
        for _ in range(3):
            program.run([x])
    table = profiler.key_averages().table(sort_by="self_device_time_total")
    assert "Self NPU" in table
    assert "Self NPU time total" in table
    (average,) = [row for row in profiler.key_averages() if row.key == "add_one"]
    assert average.count == 3
    assert average.self_device_time_total > 0


def test_a_copy_is_a_device_event_with_its_bytes(export):
    host = torch.ones(256, 256)
    with profile(activities=BOTH) as profiler:
        host.to("npu")
    trace = export(profiler)
    (copy,) = trace.of("gpu_memcpy")
    assert copy["name"] == "cpu to npu"
    assert copy["args"]["bytes"] == 256 * 256 * 4
    assert trace.row(copy) == "npu:0 copies"


def test_a_fallback_is_a_runtime_call_named_after_its_op(x):
    with profile(activities=BOTH) as profiler:
        x.roll(1)
    names = [event.name for event in profiler.events()]
    assert any(name.startswith("npu::fallback aten::roll") for name in names)


def test_waiting_is_a_runtime_call(x):
    with profile(activities=BOTH) as profiler:
        torch.npu.synchronize()
    assert "npu::synchronize device" in [event.name for event in profiler.events()]


def test_device_time_is_counted_for_its_op_and_for_no_call_beside_it(program, x):
    with profile(activities=BOTH) as profiler:
        for _ in range(50):
            program.run([x])
            torch.npu.synchronize()
    with_time = {event.key for event in profiler.key_averages() if event.self_device_time_total > 0}
    assert with_time == {"npu::program add_one", "add_one"}


def test_the_trace_names_the_device_its_streams_and_draws_arrows(program, x, export):
    stream = torch.npu.Stream()
    with profile(activities=BOTH) as profiler:
        program.run([x])
        with torch.npu.stream(stream):
            program.run([x])
    trace = export(profiler)
    runs = trace.of("kernel")
    assert [run["name"] for run in runs] == ["add_one"] * 2
    assert {trace.processes[run["pid"]] for run in runs} == {"npu:0"}
    assert {trace.row(run) for run in runs} == {
        "npu:0 stream 0",
        f"npu:0 stream {stream.stream_id}",
    }
    ops = {span["args"]["External id"] for span in trace.of("cpu_op")}
    for run in runs:
        number = run["args"]["correlation"]
        source, target = trace.flow_starts[number], trace.flow_ends[number]
        assert (target["pid"], target["tid"]) == (run["pid"], run["tid"])
        (call,) = [
            span
            for span in trace.of("privateuse1_runtime")
            if span["args"].get("correlation") == number
        ]
        assert (source["pid"], source["tid"]) == (call["pid"], call["tid"])
        assert run["args"]["External id"] == call["args"]["External id"]
        assert run["args"]["External id"] in ops


def test_an_annotation_spans_its_work_on_the_device(program, x, export):
    with profile(activities=BOTH) as profiler, record_function("my step"):
        program.run([x])
        program.run([x])
    trace = export(profiler)
    (annotation,) = trace.of("gpu_user_annotation")
    runs = trace.of("kernel")
    assert annotation["name"] == "my step"
    assert annotation["ts"] <= min(run["ts"] for run in runs)
    assert annotation["ts"] + annotation["dur"] >= max(run["ts"] + run["dur"] for run in runs)


def test_threads_show_what_each_of_them_asked_for(program, export):
    def work():
        mine = torch.ones(64, device="npu")
        with torch.npu.stream(torch.npu.Stream()):
            for _ in range(20):
                program.run([mine])
            torch.npu.current_stream().synchronize()

    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=BOTH, experimental_config=config) as profiler:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    trace = export(profiler)
    assert len(trace.of("kernel")) == 80
    calls = [
        span
        for span in trace.of("privateuse1_runtime")
        if span["name"] in ("npu::run", "npu::launch")
    ]
    assert len(calls) == 80
    assert len({span["tid"] for span in calls}) == 4


def test_spans_of_one_row_do_not_cross(program, export):
    def work():
        mine = torch.ones(64, device="npu")
        for _ in range(200):
            program.run([mine])

    with profile(activities=BOTH) as profiler:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ends: dict[tuple[int, int], float] = {}
    trace = export(profiler)
    for run in sorted(trace.of("kernel"), key=lambda span: span["ts"]):
        row = (run["pid"], run["tid"])
        assert run["ts"] >= ends.get(row, 0.0) - 1e-3
        ends[row] = run["ts"] + run["dur"]
        assert trace.rows[row].startswith("npu:0 stream 0")


def test_a_schedule_keeps_the_active_steps_alone(program, x):
    kept = []
    with profile(
        activities=BOTH,
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda profiler: kept.append(len(device_events(profiler))),
    ) as profiler:
        for _ in range(6):
            program.run([x])
            profiler.step()
    # Each step's annotation has a span on the device as well.
    assert kept == [2 + 2]


def test_a_profile_of_the_cpu_alone_is_as_without_the_device(program, x):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        program.run([x])
        x.roll(1)
    names = {event.name for event in profiler.events()}
    assert device_events(profiler) == []
    assert {"npu::program add_one", "aten::roll"} <= names
    assert not any(name.startswith(("npu::run", "npu::fallback")) for name in names)


def test_results_are_the_same_under_the_profiler(program):
    x = torch.randn(64, device="npu")
    alone = program.run([x])[0].cpu()
    with profile(activities=BOTH, record_shapes=True, with_stack=True, profile_memory=True):
        profiled = program.run([x])[0].cpu()
    assert torch.equal(alone, profiled)


def test_windows_follow_each_other_and_keep_their_events_apart(program, x):
    for count in (1, 3, 2):
        with profile(activities=BOTH) as profiler:
            for _ in range(count):
                program.run([x])
        assert len(device_events(profiler)) == count
        program.run([x])


def test_events_of_torch_time_ops_for_the_older_profiler(x):
    with torch.autograd.profiler.profile(use_device="npu") as profiler:
        x.roll(1)
    (average,) = [row for row in profiler.key_averages() if row.key == "aten::roll"]
    assert average.device_time_total > 0


def test_memory_of_the_device_has_its_columns_and_its_timeline(tmp_path):
    with profile(activities=BOTH, profile_memory=True, record_shapes=True, with_stack=True) as p:
        tensor = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
        del tensor
    assert "NPU Mem" in p.key_averages().table(sort_by="self_device_memory_usage")
    path = tmp_path / "timeline.json"
    with pytest.warns(FutureWarning, match="export_memory_timeline"):
        p.export_memory_timeline(str(path), device="npu:0")
    _, sizes = json.loads(path.read_text())
    totals = [sum(categories) for categories in sizes]
    assert max(totals) - min(totals) >= 1 << 20
