import json

from npu_profiler.trace_format.chrome import format_piece, format_tracks, new_flow_ids
from npu_profiler.trace_format.timeline import Flow, FlowEnd, Instant, Piece, Sample, Slice, Track

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
