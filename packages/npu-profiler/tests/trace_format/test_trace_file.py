"""The events of a trace file as JSON, and the file at every moment."""

import gzip
import json
import stat

import pytest

from npu_profiler.trace_format.timeline import Flow, FlowEnd, Instant, Piece, Sample, Slice, Track
from npu_profiler.trace_format.trace_file import (
    TraceFile,
    format_piece,
    format_tracks,
    new_flow_ids,
)

THREAD = Track(10, 10, 'main "thread"', "python x.py", 10)
DEVICE = Track(1 << 22, 1 << 22, "programs", "npu:0", 1, 1)
PIECE = Piece(
    slices=(
        Slice(THREAD, "cpu_op", "aten::mm", 1_000_000_001, 5_000, {"Sequence number": 3}),
        Slice(DEVICE, "program", "mm", 1_000_001_000, 2_000, {"device": "CPU"}),
    ),
    instants=(Instant(THREAD, "fallback", "aten::roll", 1_000_000_500),),
    samples=(Sample(DEVICE, "memory", "allocated_bytes", 1_000_000_700, 4096.0),),
    flows=(
        Flow("launch", "launch", FlowEnd(THREAD, 1_000_001_000), FlowEnd(DEVICE, 1_000_001_000)),
    ),
)


def events(piece, base_ns=1_000_000_000, **read):
    text = format_piece(piece, base_ns, flow_ids=new_flow_ids())
    return json.loads(b"[" + text.removeprefix(b",") + b"]", **read)


def test_piece_holds_every_event(check_schema):
    rows = json.loads(b"[" + format_tracks([THREAD, DEVICE]).removeprefix(b",") + b"]")
    check_schema({"baseTimeNanoseconds": 0, "traceEvents": [*rows, *events(PIECE)]})
    assert [event["ph"] for event in events(PIECE)] == ["X", "X", "i", "C", "s", "f"]
    assert events(PIECE)[0]["ts"] == 0.001


def test_what_began_before_the_recording_shows_from_its_start():
    (event,) = events(Piece([Slice(THREAD, "program", "early", 900, 300)]), base_ns=1_000)
    assert (event["ts"], event["dur"]) == (0, 0.2)


def test_values_that_json_does_not_know_become_text():
    args = {"nan": float("nan"), "list": [float("inf"), 1.5], "object": Track}

    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    (event,) = events(Piece([Slice(THREAD, "c", "n", 0, 1, args)]), 0, parse_constant=refuse)
    assert event["args"]["nan"] == "nan"
    assert event["args"]["list"] == ["inf", 1.5]


EVENT = b',\n{"ph":"i","name":"a"}'


def read(path):
    raw = path.read_bytes()
    return gzip.decompress(raw) if path.suffix == ".gz" else raw


@pytest.fixture(params=["t.json", "t.json.gz"])
def path(request, tmp_path):
    return tmp_path / request.param


def test_finished_file_is_an_object_with_facts_and_epoch(path):
    file = TraceFile(path, start_ns=1_795_000_000_000_000_000, first=EVENT)
    file.write(EVENT)
    file.finish({"torch": "2.13"})
    document = json.loads(read(path))
    assert [event["name"] for event in document["traceEvents"]] == ["a", "a"]
    assert document["baseTimeNanoseconds"] == 1_795_000_000_000_000_000
    assert document["otherData"] == {"torch": "2.13"}


def test_growing_file_is_at_every_moment_an_array_but_for_its_bracket(path):
    file = TraceFile(path, start_ns=0, first=EVENT)
    for count in range(1, 4):
        assert len(json.loads(read(path) + b"]")) == count
        file.write(EVENT)
    file.close()


def test_facts_that_json_does_not_know_become_text(path):
    file = TraceFile(path, start_ns=0, first=EVENT)
    file.finish({"nan": float("nan")})
    assert json.loads(read(path))["otherData"] == {"nan": "nan"}


def test_file_that_was_taken_away_is_an_error_at_the_end(path):
    file = TraceFile(path, start_ns=0, first=EVENT)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file.finish({})


def test_trace_may_be_read_by_others_like_any_new_file(path):
    TraceFile(path, start_ns=0, first=EVENT).close()
    plain = path.with_name("plain")
    plain.write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
