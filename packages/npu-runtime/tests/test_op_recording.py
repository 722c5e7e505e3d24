import json
import os
import threading
import time

import pytest
import torch

from npu_runtime.op_recording import OpRecording


@pytest.fixture
def recording():
    made = OpRecording(time.time_ns())
    made.take()
    yield made
    made.stop()
    made.take()


def events(piece):
    return json.loads(b"[" + piece.text.removeprefix(b",") + b"]")


def slices(piece):
    return {event["name"]: event for event in events(piece) if event["ph"] == "X"}


def test_ops_between_start_and_stop_are_recorded(recording):
    torch.ones(2).cos()
    recording.start()
    torch.ones(2).sin()
    recording.stop()
    torch.ones(2).tan()
    found = slices(recording.take())
    assert "aten::sin" in found
    assert not {"aten::cos", "aten::tan"} & found.keys()


def test_pieces_follow_each_other(recording):
    recording.start()
    torch.ones(2).sin()
    first = recording.take()
    torch.ones(2).cos()
    second = recording.take()
    assert "aten::sin" in slices(first)
    assert "aten::cos" in slices(second)
    assert "aten::sin" not in slices(second)


def test_times_are_those_of_the_system_clock(recording):
    start_ns = time.time_ns()
    recording = OpRecording(start_ns)
    recording.start()
    before_us = (time.time_ns() - start_ns) / 1000
    torch.ones(2).sin()
    after_us = (time.time_ns() - start_ns) / 1000
    sine = slices(recording.take())["aten::sin"]
    assert before_us <= sine["ts"] <= sine["ts"] + sine["dur"] <= after_us + 0.001
    assert sine["pid"] == os.getpid()


def test_own_time_is_without_what_was_called(recording):
    recording.start()
    torch.nn.functional.linear(torch.ones(64, 64), torch.ones(64, 64), torch.ones(64))
    totals = {total.name: total for total in recording.take().totals}
    linear, addmm = totals["aten::linear"], totals["aten::addmm"]
    assert linear.calls == addmm.calls == 1
    assert linear.self_ns <= linear.total_ns - addmm.total_ns
    assert sum(total.self_ns for total in totals.values()) < linear.total_ns * 3


def test_ops_of_every_thread_have_its_id(recording):
    recording.start()
    thread = threading.Thread(target=lambda: torch.ones(2).sin())
    thread.start()
    thread.join()
    torch.ones(2).cos()
    piece = recording.take()
    assert slices(piece)["aten::sin"]["tid"] == thread.native_id
    assert slices(piece)["aten::cos"]["tid"] == threading.get_native_id()
    assert set(piece.thread_ids) == {thread.native_id, threading.get_native_id()}


def test_backward_is_led_to_by_its_forward(recording):
    x = torch.ones(3, 3, requires_grad=True)
    recording.start()
    (x @ x).sum().backward()
    piece = recording.take()
    ops = slices(piece)
    flows = [event for event in events(piece) if event["ph"] in "sf"]
    starts = {event["id"]: event["ts"] for event in flows if event["ph"] == "s"}
    ends = {event["ts"]: event["id"] for event in flows if event["ph"] == "f"}
    forward, backward = ops["aten::matmul"], ops["MmBackward0"]
    began = starts[ends[backward["ts"]]]
    assert forward["ts"] <= began <= forward["ts"] + forward["dur"]


def test_annotation_keeps_a_name_that_json_must_escape(recording):
    name = 'step "1"\n\\'
    recording.start()
    with torch.profiler.record_function(name):
        pass
    assert slices(recording.take())[name]["cat"] == "user_annotation"


def test_op_under_way_at_the_end_is_not_recorded(recording):
    @torch.library.custom_op("npu_runtime_tests::end", mutates_args=())
    def end(x: torch.Tensor) -> torch.Tensor:
        recording.stop()
        return x.sin()

    recording.start()
    end(torch.ones(2).cos())
    found = slices(recording.take())
    assert "aten::cos" in found
    assert not {"npu_runtime_tests::end", "aten::sin"} & found.keys()


def test_annotation_under_way_ends_with_the_recording(recording):
    with torch.profiler.record_function("began before"):
        recording.start()
        annotation = torch.profiler.record_function
        with annotation("outer"), annotation("inner"):
            torch.ones(2).sin()
            recording.stop()
            torch.ones(2).cos()
    found = slices(recording.take())
    assert {"outer", "inner", "aten::sin"} <= found.keys()
    assert not {"began before", "aten::cos"} & found.keys()
    outer, inner, sine = found["outer"], found["inner"], found["aten::sin"]
    assert outer["ts"] <= inner["ts"] <= sine["ts"] <= sine["ts"] + sine["dur"]
    ends = [round(one["ts"] + one["dur"], 3) for one in (sine, inner, outer)]  # ns, as us
    assert ends == sorted(ends)


def test_annotation_that_ended_with_a_recording_is_not_in_the_next(recording):
    recording.start()
    with torch.profiler.record_function("open"):
        recording.stop()
        recording.take()
        recording.start()
        torch.ones(2).sin()
    found = slices(recording.take())
    assert "aten::sin" in found
    assert "open" not in found


def test_torchs_own_profiler_records_beside_it(recording):
    recording.start()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(2).sin()
    assert "aten::sin" in [item.key for item in own.key_averages()]
    assert "aten::sin" in slices(recording.take())


def test_forked_child_records_nothing_and_ends(recording):
    recording.start()
    torch.ones(2).sin()
    child = os.fork()
    if child == 0:
        torch.ones(2).cos()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert "aten::cos" not in slices(recording.take())


def test_forked_child_may_record_itself(recording):
    recording.start()
    torch.ones(2).sin()
    child = os.fork()
    if child == 0:
        own = OpRecording(time.time_ns())
        own.start()
        torch.ones(2).cos()
        names = slices(own.take()).keys()
        os._exit("aten::cos" not in names or "aten::sin" in names)
    assert os.waitpid(child, 0)[1] == 0
    assert "aten::sin" in slices(recording.take())
