"""Each test runs in a separate process: torch's profiler is one per process."""

import json

import pytest


@pytest.fixture
def run(run_lines):
    return lambda body: run_lines("import npu_profiler\n" + body)


def test_trace_writes_what_happened_inside(run, tmp_path, check_schema):
    lines = run("""
import torch
torch.ones(2).cos()
with npu_profiler.trace("t.json") as recording:
    torch.ones(2).sin()
    print(recording.summary)
torch.ones(2).tan()
print(recording.summary.op_calls > 0)
""")
    assert lines == ["None", "True"]
    document = json.loads((tmp_path / "t.json").read_text())
    check_schema(document)
    names = {event["name"] for event in document["traceEvents"]}
    assert "aten::sin" in names
    assert not names & {"aten::cos", "aten::tan"}
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


def test_importing_the_profiler_imports_no_torch(run_python):
    show = "import sys, npu_profiler; print({'torch', 'npu_runtime'} & sys.modules.keys())"
    assert run_python("-c", show).stdout == "set()\n"


def test_error_of_the_body_goes_on_and_the_trace_is_there(run, tmp_path):
    assert run("""
import torch
try:
    with npu_profiler.trace("t.json"):
        torch.ones(2).sin()
        raise KeyError("x")
except KeyError as error:
    print(error)
""") == ["'x'"]
    assert "aten::sin" in (tmp_path / "t.json").read_text()


def test_one_recording_at_a_time(run):
    assert run("""
with npu_profiler.trace("a.json"):
    try:
        with npu_profiler.trace("b.json"):
            pass
    except npu_profiler.TraceError as error:
        print(error.code, "a.json" in str(error))
""") == ["trace-active True"]


def test_recordings_can_follow_each_other(run, tmp_path):
    run("""
import torch
for name in ("a.json", "b.json"):
    with npu_profiler.trace(name):
        torch.ones(2).sin()
""")
    for name in ("a.json", "b.json"):
        assert (tmp_path / name).read_text().count("aten::sin") == 1


def test_unwritable_place_is_refused_before_the_body(run):
    assert run("""
try:
    with npu_profiler.trace("none/t.json"):
        print("ran")
except npu_profiler.TraceError as error:
    print(error.code)
""") == ["output-unwritable"]


def test_own_thread_takes_no_signal_away_from_the_main_thread(run):
    (line,) = run("""
import signal, threading
from pathlib import Path
with npu_profiler.trace("t.json"):
    (own,) = [t for t in threading.enumerate() if t.name == "npu-profiler"]
    status = Path(f"/proc/self/task/{own.native_id}/status").read_text()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    print([bool(blocked >> number - 1 & 1) for number in (signal.SIGINT, signal.SIGTERM)],
          signal.pthread_sigmask(signal.SIG_BLOCK, []))
""")
    assert line == "[True, True] set()"


def test_stays_with_its_file_when_the_program_changes_directory(run, tmp_path):
    run("""
import os, torch
with npu_profiler.trace("t.json"):
    os.chdir("/")
    torch.ones(2).sin()
""")
    assert (tmp_path / "t.json").exists()


def test_fork_writes_nothing(run):
    assert run("""
import os, torch
with npu_profiler.trace("t.json"):
    torch.ones(2).sin()
    child = os.fork()
    torch.ones(2).cos()
    if child != 0:
        os.waitpid(child, 0)
        print(open("t.json").read().startswith("[ "))
if child == 0:
    os._exit(0)
print(open("t.json").read().startswith("{"))
""") == ["True", "True"]


def test_backend_events_are_heard_with_arrows(run, tmp_path, check_schema):
    run("""
import torch
from npu_runtime import observe
with npu_profiler.trace("t.json"):
    with torch.profiler.record_function("launcher"):
        with observe.span("program", "matmul", device="CPU"):
            pass
    with observe.span("compile", "lower"):
        pass
    observe.counter("memory", "allocated_bytes", 64)
    observe.instant("fallback", "aten::roll")
""")
    document = json.loads((tmp_path / "t.json").read_text())
    check_schema(document)
    found = {(event["ph"], event["name"]) for event in document["traceEvents"]}
    assert {
        ("X", "launcher"),
        ("X", "matmul"),
        ("X", "lower"),
        ("C", "memory"),
        ("i", "aten::roll"),
        ("s", "launch"),
        ("f", "launch"),
    } <= found
