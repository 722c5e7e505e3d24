"""Each test runs in a separate process: torch's profiler is one per process."""

import gzip
import json

import pytest

PROLOGUE = """
import torch, npu_profiler
from torch.profiler import ProfilerActivity, schedule
from npu_runtime import observe
"""


@pytest.fixture
def run(run_lines):
    return lambda body: run_lines(PROLOGUE + body)


def rows(events):
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }


def test_it_is_torchs_profiler_with_its_tables_and_methods(run):
    first, names, metadata = run("""
with npu_profiler.profile(record_shapes=True, with_flops=True) as profiler:
    profiler.add_metadata("answer", "42")
    torch.ones(4, 4) @ torch.ones(4, 4)
print(isinstance(profiler, torch.profiler.profile), len(profiler.events()) > 0)
(row,) = [r for r in profiler.key_averages(group_by_input_shape=True) if r.key == "aten::mm"]
print(row.input_shapes, row.flops)
profiler.export_chrome_trace("t.json")
import json
print(json.load(open("t.json"))["answer"])
""")
    assert first == "True True"
    assert names == "[[4, 4], [4, 4]] 128"
    assert metadata == "42"


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_trace_has_steps_phases_and_counters_of_the_device(run, tmp_path, name):
    run(f"""
with npu_profiler.profile() as profiler:
    with observe.span("compile", "lower"):
        torch.ones(2).sin()
    with observe.span("decode", "step 1"):
        torch.ones(2).cos()
    observe.counter("memory", "allocated_bytes", 64)
profiler.export_chrome_trace({name!r})
""")
    raw = (tmp_path / name).read_bytes()
    events = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)["traceEvents"]
    of_rows = rows(events)
    added = {
        e["name"]: of_rows[e["pid"], e["tid"]]
        for e in events
        if e.get("cat") in ("compile", "decode")
    }
    assert added == {"lower": "compile phases", "step 1": "prefill and decode"}
    assert [e["args"] for e in events if e["ph"] == "C"] == [{"allocated_bytes": 64}]
    ops = {e["name"]: e for e in events if e.get("cat") == "cpu_op"}
    lower = next(e for e in events if e["name"] == "lower")
    assert lower["ts"] - 50 <= ops["aten::sin"]["ts"] <= lower["ts"] + lower["dur"] + 50


def test_without_the_device_nothing_is_added(run, tmp_path):
    run("""
with npu_profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
    with observe.span("compile", "lower"):
        torch.ones(2).sin()
profiler.export_chrome_trace("t.json")
""")
    text = (tmp_path / "t.json").read_text()
    assert "aten::sin" in text
    assert '"lower"' not in text


def test_each_window_of_a_schedule_has_its_own_rows(run, tmp_path):
    run("""
windows = []
def ready(profiler):
    windows.append(f"w{len(windows)}.json")
    profiler.export_chrome_trace(windows[-1])
with npu_profiler.profile(
    schedule=schedule(wait=1, warmup=1, active=1, repeat=2), on_trace_ready=ready
) as profiler:
    for number in range(6):
        with observe.span("decode", f"step {number}"):
            torch.ones(2).sin()
        profiler.step()
""")
    for name, step in (("w0.json", "step 2"), ("w1.json", "step 5")):
        events = json.loads((tmp_path / name).read_text())["traceEvents"]
        assert [e["name"] for e in events if e.get("cat") == "decode"] == [step]


@pytest.mark.usefixtures("relu_model")
def test_layers_stand_beside_their_program(run, tmp_path):
    run("""
import npu_runtime
profiler = npu_profiler.profile(layers=True, layers_first=1)
relu = npu_runtime.load_program(
    "large.xml", name="relu", options={"INFERENCE_PRECISION_HINT": "f32"}
)
x = torch.randn(4096, 4096)
with profiler:
    for _ in range(3):
        relu.run([x])
profiler.export_chrome_trace("t.json")
""")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    programs = [e for e in events if e.get("cat") == "kernel"]
    layers = [e for e in events if e.get("cat") == "layer"]
    assert len(programs) == 3
    assert [layer["name"] for layer in layers] == ["relu"]
    assert rows(events)[layers[0]["pid"], layers[0]["tid"]] == "layers"
    start, end = programs[0]["ts"], programs[0]["ts"] + programs[0]["dur"]
    assert start - 1 <= layers[0]["ts"] <= layers[0]["ts"] + layers[0]["dur"] <= end + 1


def test_modules_stand_around_their_ops(run, tmp_path):
    run("""
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
with npu_profiler.profile(with_modules=True, schedule=schedule(wait=1, warmup=0, active=1),
                          on_trace_ready=lambda p: p.export_chrome_trace("t.json")) as profiler:
    for _ in range(2):
        model(torch.ones(2, 4))
        profiler.step()
model(torch.ones(2, 4))
""")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    modules = {e["name"]: e for e in events if e.get("cat") == "module"}
    assert modules.keys() == {"Sequential", "0", "1"}
    (linear,) = [e for e in events if e["name"] == "aten::linear"]
    around = modules["0"]
    assert (around["pid"], around["tid"]) == (linear["pid"], linear["tid"])
    assert around["ts"] <= linear["ts"]
    assert linear["ts"] + linear["dur"] <= around["ts"] + around["dur"]
    assert around["args"] == {"class": "Linear", "root": "Sequential"}


def test_modules_have_rows_of_their_own_beside_python_calls(run, tmp_path):
    run("""
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
with npu_profiler.profile(with_modules=True, with_stack=True) as profiler:
    model(torch.ones(2, 4))
profiler.export_chrome_trace("t.json")
""")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    of_rows = rows(events)
    modules = [e for e in events if e.get("cat") == "module"]
    assert len(modules) == 3
    (row,) = {of_rows[e["pid"], e["tid"]] for e in modules}
    assert row.startswith("modules of ")


def test_a_profile_that_was_not_begun_is_not_ended_or_written(run, tmp_path):
    run(f"""
profile = npu_profiler.profile()
for attempt in (profile.stop, lambda: profile.export_chrome_trace("{tmp_path}/trace.json")):
    try:
        attempt()
    except npu_profiler.TraceError as error:
        assert error.code == "trace-state", error
    else:
        raise AssertionError("no error")
""")


def test_npu_profiler_times_its_body_by_events_of_the_device(run):
    early, is_profile, elapsed, table = run("""
profiler = npu_profiler.NPUProfiler(record_shapes=True)
try:
    profiler.elapsed_time()
except npu_profiler.TraceError as error:
    print(error.code)
import time
with profiler as entered:
    torch.ones(4, device="npu").cpu()
    time.sleep(0.05)
print(entered is profiler, isinstance(profiler, npu_profiler.profile))
print(profiler.elapsed_time())
print("Self NPU" in profiler.key_averages().table(sort_by="self_npu_time_total"))
""")
    assert early == "trace-state"
    assert is_profile == "True True"
    assert 50 <= float(elapsed) < 5000
    assert table == "True"
