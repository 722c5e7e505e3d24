"""Torch's exported trace, and its clock compared with ours."""

import json
import re

import pytest
import torch

from npu_profiler.torch_side import kineto_file
from npu_profiler.torch_side.kineto_file import ClockAlignment, ClockMark, align, read_kineto_file


def export(path, work):
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
    ) as profile:
        work()
    profile.export_chrome_trace(str(path))
    return json.loads(path.read_text())


def step():
    layer = torch.nn.Linear(4, 4)
    layer(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize("chunk", [64, 1000, 1 << 20])
def test_read_finds_every_op_whatever_the_chunk(tmp_path, monkeypatch, chunk):
    document = export(tmp_path / "k.json", step)
    monkeypatch.setattr(kineto_file, "CHUNK_CHARS", chunk)
    found = read_kineto_file(tmp_path / "k.json")
    expected = [
        event["name"]
        for event in document["traceEvents"]
        if event["ph"] == "X" and isinstance(event["tid"], int)
    ]
    assert [item.name for item in found.slices] == expected
    assert found.unreadable == 0
    assert len(found.flows) == sum(event["ph"] == "s" for event in document["traceEvents"])
    assert found.flows


def test_plain_ops_are_read_as_the_decoder_reads_them(tmp_path, monkeypatch):
    export(tmp_path / "k.json", step)
    fast = read_kineto_file(tmp_path / "k.json")
    monkeypatch.setattr(kineto_file, "_PLAIN_OP", re.compile("(?!)"))
    assert read_kineto_file(tmp_path / "k.json") == fast


def test_read_keeps_nanoseconds_exactly(tmp_path):
    path = tmp_path / "k.json"
    path.write_text(
        '{"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [{"ph": "X", "cat": "cpu_op",'
        '"name": "aten::add", "pid": 1, "tid": 7, "ts": 4300784966150.675, "dur": 0.05},'
        '{"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 1, "tid": 7, "ts": 12, "dur": 3}'
        "]}"
    )
    add, mul = read_kineto_file(path).slices
    assert add.start_ns == 1790857026000000000 + 4300784966150675
    assert add.duration_ns == 50
    assert (mul.start_ns, mul.duration_ns) == (1790857026000012000, 3000)


def test_read_counts_an_event_that_is_no_json_and_goes_on(tmp_path):
    path = tmp_path / "k.json"
    good = '\n  {\n "ph": "X", "cat": "c", "name": "%s", "pid": 1, "tid": 7, "ts": 1, "dur": 1}'
    broken = '\n  {\n "ph": "X", "name": "we"ird", "tid": 7}'
    path.write_text(f'{{"traceEvents": [{good % "a"},{broken},{good % "b"}]}}')
    found = read_kineto_file(path)
    assert [item.name for item in found.slices] == ["a", "b"]
    assert found.unreadable == 1


def test_read_survives_names_with_quotes_and_control_characters(tmp_path):
    name = 'say "hi"\\ \n\t é 語'

    def work():
        with torch.profiler.record_function(name):
            step()

    profile_path = tmp_path / "k.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    profile.export_chrome_trace(str(profile_path))
    found = read_kineto_file(profile_path)
    assert "aten::linear" in [item.name for item in found.slices]


def test_read_of_a_file_without_events_says_so(tmp_path):
    path = tmp_path / "k.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="no traceEvents"):
        read_kineto_file(path)


def test_align_without_marks_knows_no_error():
    assert align([]) == ClockAlignment(0, None, 0)


def test_align_keeps_offset_zero_when_marks_allow_it():
    marks = [ClockMark(100, 110, 105), ClockMark(200, 204, 203)]
    assert align(marks) == ClockAlignment(0, 3, 2)


def test_align_takes_middle_of_what_all_marks_allow():
    marks = [ClockMark(100, 110, 1108), ClockMark(200, 204, 1203)]
    # The first allows 998..1008, the second 999..1003.
    assert align(marks) == ClockAlignment(1001, 2, 2)


def test_align_of_drifting_clocks_covers_every_mark_by_its_error():
    marks = [ClockMark(0, 2, 1), ClockMark(100, 102, 151), ClockMark(200, 202, 301)]
    found = align(marks)
    assert found.offset_ns == 50
    for mark in marks:
        for edge in (mark.before_ns, mark.after_ns):
            assert abs(mark.torch_ns - edge - found.offset_ns) <= found.error_ns
