import gzip
import json

import pytest

from npu_profiler.errors import TraceError
from npu_profiler.queries.programs import layer_rows
from npu_profiler.reading import load_trace
from npu_profiler.recording.schedule import layer_parts, read_schedules, write_schedule

NOTE = "the compiler's estimate, not a measurement"
FIGURES = {
    "note": NOTE, "target": "4000", "compiler": "2026.5", "latency_ms": 0.1,
    "shares": {"DPU": 50.0}, "unmodeled": [],
}  # fmt: skip


def task(row, layer, start_ns, end_ns, *, name="", parts=1, moved_bytes=None):
    return {
        "row": row,
        "name": name or f"task of {layer}",
        "layer": layer,
        "start_ns": start_ns,
        "duration_ns": end_ns - start_ns,
        "parts": parts,
        "moved_bytes": moved_bytes,
    }


def program(name, tasks, layers=("up", "gelu", "down")):
    described = [
        {"name": layer, "type": "MatMul", "module": f"net.{layer}", "line": "model.py:7"}
        for layer in layers
    ]
    return {"name": name, **FIGURES, "layers": described, "tasks": tasks}


# Weights of a later layer are loaded while earlier ones compute; 20 ns are idle.
TASKS = [
    task("DMA 0 DDR", None, 0, 100, name="fetch_dma"),
    task("DMA 0 DDR", 0, 100, 300, moved_bytes=4096),
    task("DPU", 0, 300, 500, parts=4),
    task("DMA 0 DDR", 2, 300, 600, moved_bytes=8192),
    task("SHAVE", 1, 500, 700, parts=8),
    task("DPU", 2, 720, 1000, parts=4),
]


def test_a_moment_counts_for_the_layer_that_ends_first():
    assert list(layer_parts(TASKS)) == [(0, 100, 500), (1, 500, 700), (2, 720, 1000)]


def test_a_layer_gets_what_no_earlier_one_covers_in_several_parts():
    tasks = [task("DPU", 0, 0, 900), task("SHAVE", 1, 300, 400), task("DMA 0 DDR", 2, 100, 200)]
    assert list(layer_parts(tasks)) == [
        (0, 0, 100), (2, 100, 200), (0, 200, 300), (1, 300, 400), (0, 400, 900),
    ]  # fmt: skip


def test_layers_of_no_time_or_a_rounding_have_no_part():
    assert list(layer_parts([task("DPU", 0, 5, 5), task("DPU", 1, 5, 7)])) == []


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "estimate.json"
    write_schedule([program("net", TASKS)], path)
    return load_trace(path)


def test_engines_are_rows_below_the_program_and_its_layers(trace):
    rows = {track.name: [(one.name, one.start_ns, one.duration_ns) for one in track]
            for track in trace.tracks}  # fmt: skip
    assert list(rows) == ["programs", "DPU", "SHAVE", "DMA 0 DDR"]
    assert rows["DPU"] == [("task of 0", 300, 200), ("task of 2", 720, 280)]
    assert rows["DMA 0 DDR"][0] == ("fetch_dma", 0, 100)
    assert rows["programs"] == [
        ("net", 0, 1000), ("up", 100, 400), ("gelu", 500, 200), ("down", 720, 280),
    ]  # fmt: skip
    assert {track.process for track in trace.tracks} == {f"npu:0 ({NOTE})"}
    assert [track.device for track in trace.tracks] == [0] * 4


def test_tasks_have_their_layers_module_and_line_and_what_they_move(trace):
    by_name = {(one.track.name, one.name): dict(one.args) for one in trace.slices("task")}
    origin = {"module": "net.up", "line": "model.py:7"}
    assert by_name["DPU", "task of 0"] == {"parts": 4, **origin}
    assert by_name["DMA 0 DDR", "task of 0"] == {"bytes": 4096, **origin}


def test_the_trace_says_what_estimated_it(trace):
    assert (trace.estimate["note"], trace.estimate["target"]) == (NOTE, "4000")
    assert trace.estimate["programs"] == [{"name": "net", **FIGURES}]


def test_a_layer_knows_its_time_and_that_of_each_engine(trace):
    rows = {row.name: row for row in layer_rows(trace)}
    down = rows["down"]
    assert (down.total_ns, down.calls, down.module, down.line) == (280, 1, "net.down", "model.py:7")
    assert down.engine_ns == {"DPU": 280, "SHAVE": 0, "DMA": 300}


def test_parts_of_a_layer_are_one_run_of_it(tmp_path):
    tasks = [task("DPU", 0, 0, 900), task("SHAVE", 1, 300, 400)]
    path = tmp_path / "estimate.json"
    write_schedule([program("net", tasks, ("up", "gelu"))], path)
    trace = load_trace(path)
    (up, gelu) = layer_rows(trace)
    assert [(row.name, row.calls, row.total_ns) for row in (up, gelu)] == [
        ("up", 1, 800), ("gelu", 1, 100),
    ]  # fmt: skip
    assert [one.start_ns for one in trace.slices("layer continued")] == [400]


def test_programs_follow_each_other_and_tasks_side_by_side_have_rows(tmp_path):
    both = [task("SHAVE", 0, 0, 300), task("SHAVE", 0, 100, 200), task("SHAVE", 0, 200, 200)]
    path = tmp_path / "estimate.json.gz"
    write_schedule([program("prefill", TASKS), program("decode", both)], path)
    assert json.loads(gzip.decompress(path.read_bytes()))["otherData"]["estimate"]
    trace = load_trace(path)
    starts = [(one.name, one.start_ns) for one in trace.slices("program")]
    assert starts == [("prefill", 0), ("decode", 1000)]
    (second,) = [track for track in trace.tracks if track.name == "SHAVE (2)"]
    assert [one.start_ns for one in second] == [1000]


@pytest.mark.parametrize("report", [None, {"schedule": None}, {"schedule": "/absent.json"}])
def test_a_program_without_a_schedule_is_an_error_with_the_compilers_words(report):
    findings = [
        {"judge": "rules", "detail": "12 operations"},
        {"judge": "compiler", "detail": "No compiler is installed."},
    ]
    with pytest.raises(
        TraceError, match=r"of an NPU's compiler, got none: No compiler is installed\. See"
    ) as raised:
        read_schedules([{"name": "net", "findings": findings, "report": report}])
    assert raised.value.code == "estimate-schedule"


def test_what_cannot_be_written_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "estimate.json"
    path.write_text("before")
    with pytest.raises(KeyError):
        write_schedule([{"note": NOTE, "layers": [], "tasks": [{}]}], path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
