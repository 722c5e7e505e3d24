import pytest
import torch  # noqa: F401  # autoloads npu_runtime

from npu_profiler.trace_format.queues import Queues
from npu_profiler.trace_format.tracks import Tracks
from npu_runtime.observe import Event

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
