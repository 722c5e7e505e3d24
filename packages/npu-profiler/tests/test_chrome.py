import gzip
import json
import stat

import pytest

from npu_profiler.chrome import check_writable, write_chrome_trace
from npu_profiler.errors import TraceError
from npu_profiler.timeline import Flow, FlowEnd, Instant, Sample, Slice, Timeline, Track

THREAD = Track(10, 10, 'main "thread"', "python x.py", 10)
DEVICE = Track(1 << 22, 1 << 22, "programs", "npu:0", 1, 1)
TIMELINE = Timeline(
    start_ns=1_000_000_000,
    end_ns=1_000_100_000,
    tracks=(THREAD, DEVICE),
    slices=(
        Slice(THREAD, "cpu_op", "aten::mm", 1_000_000_001, 5_000, {"Sequence number": 3}),
        Slice(DEVICE, "program", "mm", 1_000_001_000, 2_000, {"device": "CPU"}),
    ),
    instants=(Instant(THREAD, "fallback", "aten::roll", 1_000_000_500),),
    samples=(Sample(DEVICE, "memory", "allocated_bytes", 1_000_000_700, 4096.0),),
    flows=(
        Flow("launch", "launch", FlowEnd(THREAD, 1_000_001_000), FlowEnd(DEVICE, 1_000_001_000)),
    ),
    facts={"torch": "2.13"},
)


def test_written_trace_holds_every_event(tmp_path, check_schema):
    path = tmp_path / "t.json"
    write_chrome_trace(TIMELINE, path)
    document = json.loads(path.read_text())
    check_schema(document)
    phases = [event["ph"] for event in document["traceEvents"] if event["ph"] != "M"]
    assert phases == ["X", "X", "i", "C", "s", "f"]
    assert document["traceEvents"][-6]["ts"] == 0.001
    assert document["baseTimeNanoseconds"] == 1_000_000_000
    assert document["otherData"] == {"torch": "2.13"}


def test_gz_suffix_compresses(tmp_path):
    write_chrome_trace(TIMELINE, tmp_path / "t.json")
    write_chrome_trace(TIMELINE, tmp_path / "t.json.gz")
    assert (
        gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == (tmp_path / "t.json").read_bytes()
    )


def test_values_that_json_does_not_know_become_text(tmp_path, check_schema):
    args = {"nan": float("nan"), "list": [float("inf"), 1.5], "object": Track}
    timeline = Timeline(0, 1, (THREAD,), (Slice(THREAD, "c", "n", 0, 1, args),))
    write_chrome_trace(timeline, tmp_path / "t.json")

    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    document = json.loads((tmp_path / "t.json").read_text(), parse_constant=refuse)
    written = document["traceEvents"][-1]["args"]
    assert written["nan"] == "nan"
    assert written["list"] == ["inf", 1.5]


def test_failed_writing_leaves_the_older_file(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("older")

    class Unprintable:
        def __str__(self):
            raise OSError("no")

    timeline = Timeline(0, 1, (THREAD,), (Slice(THREAD, "c", "n", 0, 1, {"x": Unprintable()}),))
    with pytest.raises(OSError, match="no"):
        write_chrome_trace(timeline, path)
    assert path.read_text() == "older"
    assert [item.name for item in tmp_path.iterdir()] == ["t.json"]


def test_trace_may_be_read_by_others_like_any_new_file(tmp_path):
    write_chrome_trace(TIMELINE, tmp_path / "t.json")
    (tmp_path / "plain").write_text("")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("t.json", "plain")]
    assert modes[0] == modes[1]


def test_check_writable_refuses_a_missing_directory(tmp_path):
    path = tmp_path / "none" / "t.json"
    with pytest.raises(TraceError, match=r"none/t\.json.*\[output-unwritable\]") as caught:
        check_writable(path)
    assert caught.value.code == "output-unwritable"


def test_check_writable_refuses_a_directory(tmp_path):
    with pytest.raises(TraceError) as caught:
        check_writable(tmp_path)
    assert caught.value.code == "output-unwritable"


def test_check_writable_leaves_nothing_behind(tmp_path):
    check_writable(tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []
