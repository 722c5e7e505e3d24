import gzip
import json
import stat

import pytest

from npu_profiler.trace_format.trace_file import TraceFile

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
