"""Rows of the timeline, lanes of overlapping spans, and the depth of queues."""

import pytest
import torch  # noqa: F401  # autoloads npu_runtime

from npu_profiler.trace_format.tracks import DEVICE_PID, Lanes, Queues, Tracks
from npu_runtime.observe import Event


def span(name, start, end, *, category="program", thread_id=1, **args):
    return Event("span", category, name, start, end - start, thread_id, args=args)


@pytest.fixture
def names():
    return {2: "loader", 3: "python"}


@pytest.fixture
def tracks(names):
    return Tracks(pid=1, program="x.py", thread_name=lambda number: names.get(number, ""))


def rows(place, *spans):
    return {item.name: item.track.name for item in map(place, spans)}


def test_threads_have_names(tracks):
    assert tracks.thread(1).name == "main thread"
    assert tracks.thread(2).name == "loader"
    assert tracks.thread(3).name == "thread 3"
    assert tracks.thread(1).process == "python x.py"


def test_process_is_there_when_nothing_was_heard(tracks):
    assert [track.process for track in tracks.take_new()] == ["python x.py"]


def test_a_new_track_is_told_once(tracks):
    tracks.take_new()
    tracks.thread(2)
    tracks.thread(2)
    assert [track.name for track in tracks.take_new()] == ["loader"]
    assert tracks.take_new() == []


def test_a_thread_that_got_another_name_is_told_again(tracks, names):
    tracks.thread(2)
    tracks.take_new()
    names[2] = "loader of images"
    tracks.rename_threads()
    assert [track.name for track in tracks.take_new()] == ["loader of images"]


def test_programs_that_overlap_stand_on_rows_of_their_own(tracks):
    found = rows(
        tracks.place_on_device,
        span("b", 5, 8, thread_id=2),
        span("a", 0, 10),
        span("c", 10, 12),
    )
    assert found == {"b": "programs", "a": "programs (2)", "c": "programs"}


def test_phase_within_a_phase_of_the_same_thread_shares_its_row(tracks):
    found = rows(
        tracks.place_on_host,
        span("lower", 2, 4, category="compile"),
        span("other", 3, 5, category="compile", thread_id=2),
        span("compile", 0, 10, category="compile"),
    )
    assert found == {
        "lower": "compile phases",
        "other": "compile phases (2)",
        "compile": "compile phases",
    }


def test_steps_share_a_row_and_stand_above_threads(tracks):
    found = rows(
        tracks.place_on_host,
        span("prompt", 0, 4, category="prefill"),
        span("token", 5, 6, category="decode"),
    )
    assert set(found.values()) == {"prefill and decode"}
    assert tracks.host("decode").order < tracks.thread(1).order


def test_each_device_is_a_process(tracks):
    placed = [tracks.place_on_device(span("a", 0, 1, device_index=index)) for index in (0, 1)]
    assert [item.track.process for item in placed] == ["npu:0", "npu:1"]
    assert [item.track.pid for item in placed] == [DEVICE_PID, DEVICE_PID + 1]


def test_rows_are_given_out_once(tracks):
    assert tracks.thread(2) is tracks.thread(2)
    assert tracks.host("compile") is tracks.host("compile")
    assert tracks.host("compile").tid != tracks.host("other").tid


def test_main_thread_under_the_commands_own_name_is_the_main_thread():
    tracks = Tracks(pid=7, program="x.py", thread_name=lambda _: "npu-profiler")
    assert tracks.thread(7).name == "main thread"
    assert tracks.thread(8).name == "npu-profiler"


def test_spans_that_follow_each_other_share_a_lane():
    lanes = Lanes()
    assert [lanes.place(0, 5, 1), lanes.place(5, 9, 2), lanes.place(20, 30, 1)] == [0, 0, 0]


def test_span_around_earlier_ones_of_its_thread_shares_their_lane():
    lanes = Lanes()
    assert [lanes.place(1, 2, 1), lanes.place(3, 4, 1), lanes.place(0, 5, 1)] == [0, 0, 0]


def test_span_around_one_of_another_thread_gets_a_lane_of_its_own():
    lanes = Lanes()
    assert [lanes.place(1, 2, 1), lanes.place(0, 5, 2)] == [0, 1]


def test_spans_that_cross_stand_apart_and_a_free_lane_serves_again():
    lanes = Lanes()
    assert [lanes.place(0, 5, 1), lanes.place(4, 8, 1), lanes.place(6, 9, 1)] == [0, 1, 0]


BASE = 1_795_000_000_000_000_000


@pytest.fixture
def queues():
    return Queues(Tracks(pid=1, program="x.py", thread_name=lambda _: ""))


def run(category, asked, start, end, stream=0):
    args = {
        "device_index": 0,
        "stream": stream,
        "enqueue_thread_id": 1,
        "enqueue_ns": BASE + asked,
    }
    return Event("span", category, "p", BASE + start, end - start, 1, args=args)


def launch(asked, **stream):
    return run("launch", asked, asked, asked + 1, **stream)


def depths(samples):
    return [(sample.time_ns - BASE, sample.value) for sample in samples]


def test_depth_rises_with_each_launch_and_falls_with_each_end(queues):
    first = queues.follow([launch(10), launch(20), run("program", 10, 10, 50)])
    assert depths(first) == [(10, 1), (20, 2), (50, 1)]
    assert depths(queues.follow([run("program", 20, 50, 90)])) == [(90, 0)]


def test_each_stream_has_a_counter_of_its_own(queues):
    found = queues.follow([launch(10), launch(20, stream=3)])
    assert [(sample.counter, sample.value) for sample in found] == [
        ("queue of stream 0", 1),
        ("queue of stream 3", 1),
    ]


def test_run_that_ended_before_its_launch_was_told_counts_once(queues):
    assert depths(queues.follow([run("program", 10, 10, 15)])) == [(10, 1), (15, 0)]
    assert queues.follow([launch(10)]) == []


def test_run_that_was_not_enqueued_has_no_queue(queues):
    assert queues.follow([Event("span", "program", "p", BASE, 5, 1)]) == []
