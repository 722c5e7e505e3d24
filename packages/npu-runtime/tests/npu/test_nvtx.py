"""Ranges under torch.cuda.nvtx's names are events of observe."""

import threading

import pytest
import torch

from npu_runtime.errors import InputError


def test_ranges_nest(heard):
    assert torch.npu.nvtx.range_push("outer") == 0
    assert torch.npu.nvtx.range_push("inner") == 1
    assert torch.npu.nvtx.range_pop() == 1
    assert torch.npu.nvtx.range_pop() == 0
    inner, outer = [event for event in heard if event.category == "user"]
    assert (inner.name, outer.name) == ("inner", "outer")
    assert outer.start_ns <= inner.start_ns
    assert outer.duration_ns >= inner.duration_ns


def test_popping_what_was_not_pushed_is_harmless():
    assert torch.npu.nvtx.range_pop() == -1


def test_a_range_may_end_on_another_thread(heard):
    handle = torch.npu.nvtx.range_start("long")
    thread = threading.Thread(target=torch.npu.nvtx.range_end, args=(handle,))
    thread.start()
    thread.join()
    torch.npu.nvtx.range_end(handle)
    assert [event.name for event in heard if event.category == "user"] == ["long"]


def test_marks_and_formatted_ranges(heard):
    torch.npu.nvtx.mark("here")
    with torch.npu.nvtx.range("step {}", 3):
        pass
    named = [(event.kind, event.name) for event in heard if event.category == "user"]
    assert named == [("instant", "here"), ("span", "step 3")]


@pytest.mark.parametrize("text", ["{", "{0}{}", "{name}", "{5}"])
def test_a_range_that_cannot_be_formatted(text):
    with pytest.raises(InputError, match="must be a format") as caught, torch.npu.nvtx.range(text):
        pass
    assert caught.value.code == "range-format"
