import gzip
import json

import pytest

from npu_profiler import TraceError
from npu_profiler.reading import load_trace
from npu_profiler.trace_format.timeline import Flow, FlowEnd, Instant, Sample, Slice, Track

MAIN = Track(1, 1, "main thread", "python x.py")
PROGRAMS = Track(1 << 22, 1 << 22, "programs", "npu:0")

SLICES = [
    Slice(MAIN, "cpu_op", "aten::linear", 1_000, 9_000),
    Slice(MAIN, "cpu_op", "aten::addmm", 2_000, 3_001),
    Slice(MAIN, "user_annotation", 'step "1"', 500, 20_000, {"bytes": 7}),
    Slice(PROGRAMS, "program", "graph_0", 3_000, 4_000, {"stream": 0}),
    Slice(PROGRAMS, "layer", "mm_1", 3_000, 2_000, {"type": "FullyConnected"}),
]
# The sample at 300 is the first event: times count from it.
FIRST = 300
FLOW = Flow("launch", "launch", FlowEnd(MAIN, 2_500), FlowEnd(PROGRAMS, 3_000))


@pytest.fixture(params=["trace.json", "trace.json.gz"])
def path(request, write_trace):
    return write_trace(
        slices=SLICES,
        instants=[Instant(MAIN, "fallback", "aten::roll", 2_100, {"duration_us": 1.5})],
        samples=[Sample(PROGRAMS, "memory", "allocated_bytes", at, at * 2) for at in (900, 300)],
        flows=[FLOW],
        name=request.param,
        facts={"torch": "2.13.0"},
    )


def test_everything_that_was_written_is_read(path):
    trace = load_trace(path)
    assert trace.is_complete
    assert (trace.facts["torch"], trace.event_count) == ("2.13.0", 9)
    assert trace.base_ns == FIRST
    main, programs = trace.tracks
    assert (main.name, main.process, main.device) == ("main thread", "python x.py", None)
    assert (programs.name, programs.device) == ("programs", 0)
    assert [(item.name, item.start_ns + FIRST, item.duration_ns) for item in main] == [
        ('step "1"', 500, 20_000),
        ("aten::linear", 1_000, 9_000),
        ("aten::addmm", 2_000, 3_001),
    ]
    (mark,) = trace.instants
    assert (mark.name, mark.time_ns + FIRST, mark.args["duration_us"]) == ("aten::roll", 2_100, 1.5)
    (curve,) = trace.counters
    assert (curve.process, list(curve.times), list(curve.values)) == (
        "npu:0",
        [0, 600],
        [600, 1800],
    )


def test_slices_know_what_is_around_them_and_their_own_time(path):
    main, programs = load_trace(path).tracks
    step, linear, addmm = main
    assert [item.name for item in addmm.ancestors()] == ["aten::linear", 'step "1"']
    assert (step.self_ns, linear.self_ns, addmm.self_ns) == (11_000, 5_999, 3_001)
    assert (step.args, linear.args) == ({"bytes": 7}, {})
    program, layer = programs
    assert layer.parent == program
    assert layer.args["type"] == "FullyConnected"


def test_slice_at_a_moment_is_the_innermost(path):
    main, _ = load_trace(path).tracks
    times = (400, 600, 2_000, 5_001, 6_000, 30_000)
    found = [main.at(time - FIRST) for time in times]
    names = [item and item.name for item in found]
    assert names == [None, 'step "1"', "aten::addmm", "aten::addmm", "aten::linear", None]


def test_arrows_lead_from_slice_to_slice(path):
    (arrow,) = load_trace(path).flows["launch"]
    assert (arrow.cause.name, arrow.effect.parent.name) == ("aten::addmm", "graph_0")


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_file_without_its_end_gives_what_was_written(write_trace, name):
    trace = load_trace(write_trace(slices=SLICES, name=name, is_complete=False))
    assert not trace.is_complete
    assert trace.event_count == len(SLICES)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_file_that_was_cut_anywhere_can_be_read(write_trace, tmp_path, name):
    raw = write_trace(slices=SLICES, name=name).read_bytes()
    cut = tmp_path / f"cut-{name}"
    counts = []
    # Within the first hundred bytes there is nothing to recognize a trace by.
    for size in range(130 if name.endswith("gz") else 100, len(raw), 5):
        cut.write_bytes(raw[:size])
        trace = load_trace(cut)
        assert not trace.is_complete or trace.event_count == len(SLICES)
        counts.append(trace.event_count)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(SLICES))


def test_events_of_several_chunks_are_read_once(write_trace, monkeypatch):
    path = write_trace(slices=[Slice(MAIN, "cpu_op", f"op{n}", n * 10, 5) for n in range(300)])
    monkeypatch.setattr("npu_profiler.reading.events._CHUNK_BYTES", 100)
    (main,) = load_trace(path).tracks
    assert [item.name for item in main] == [f"op{n}" for n in range(300)]


def test_equal_begins_nest_by_length_and_equal_slices_as_they_were_told(tmp_path):
    event = '{"ph":"X","cat":"cpu_op","name":"%s","pid":1,"tid":1,"ts":1.000,"dur":%s.000}'
    told = [("inner", 1), ("outer", 3), ("middle", 3)]
    (tmp_path / "t.json").write_text("[" + ",\n".join(event % item for item in told) + "]")
    (track,) = load_trace(tmp_path / "t.json").tracks
    assert [item.name for item in track] == ["outer", "middle", "inner"]


def test_trace_of_torchs_own_writer_is_read(tmp_path):
    (tmp_path / "t.json").write_text(
        '{\n"schemaVersion": 1, "deviceProperties": [\n],\n"traceEvents": [\n{\n"ph": "X", '
        '"cat": "cpu_op", "name": "aten::mm", "pid": 3, "tid": 3,\n"ts": 12.345, "dur": 2,\n'
        '"args": {"External id": 1}\n}\n], "traceName": "t.json"}'
    )
    trace = load_trace(tmp_path / "t.json")
    (item,) = trace.slices()
    assert (trace.is_complete, item.start_ns, item.duration_ns) == (True, 0, 2_000)


TORCHS = [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "npu:0"}},
    {"ph": "X", "cat": "cpu_op", "name": "npu::program g", "pid": 3, "tid": 3, "ts": 1, "dur": 8},
    {
        "ph": "X",
        "cat": "privateuse1_runtime",
        "name": "npu::fallback aten::roll",
        "pid": 3,
        "tid": 3,
        "ts": 10,
        "dur": 2.5,
    },
    {"ph": "X", "cat": "kernel", "name": "g", "pid": 0, "tid": 1, "ts": 2, "dur": 5},
    {"ph": "X", "cat": "gpu_memcpy", "name": "c", "pid": 0, "tid": 2, "ts": 9, "dur": 1},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 3, "tid": 3, "ts": 1.5},
    {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 0, "tid": 1, "ts": 2},
    {"ph": "M", "name": "process_name", "pid": 99, "tid": 0, "args": {"name": "npu:0"}},
    {"ph": "M", "name": "thread_name", "pid": 99, "tid": 7, "args": {"name": "layers"}},
    {
        "ph": "X",
        "cat": "layer",
        "name": "mm",
        "pid": 99,
        "tid": 7,
        "ts": 2,
        "dur": 4,
        "args": {"type": "MatMul"},
    },
    {"ph": "X", "cat": "layer", "name": "lost", "pid": 99, "tid": 7, "ts": 20, "dur": 4},
]


def test_device_events_of_torchs_profiler_have_our_names(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": TORCHS}))
    trace = load_trace(tmp_path / "t.json")
    (program,), (copy,) = trace.slices("program"), trace.slices("copy")
    assert (program.name, copy.name) == ("g", "c")
    layer, lost = trace.slices("layer")
    assert (layer.parent, layer.args["type"], lost.parent) == (program, "MatMul", None)
    (arrow,) = trace.flows["launch"]
    assert arrow.cause.name == "npu::program g"
    (mark,) = trace.instants
    assert (mark.category, mark.name, mark.args) == ("fallback", "aten::roll", {"duration_us": 2.5})


@pytest.mark.parametrize(
    "text", ["", "hello", "{}", "[1, 2]", '{"a": 1}', '{"a": x, "traceEvents": []}']
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_file_that_is_no_trace_is_refused(tmp_path, text, is_packed):
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(text.encode()) if is_packed else text.encode())
    with pytest.raises(TraceError, match=r"must be a Chrome trace .* \[trace-invalid\]"):
        load_trace(path)


def test_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"No such file.* \[trace-unreadable\]"):
        load_trace(tmp_path / "none.json")
