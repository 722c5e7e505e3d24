import logging
import time

import pytest
import torch

from npu_runtime import load_program, observe

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture
def heard():
    """Events that were delivered; the listener goes when the test ends."""
    events: list[observe.Event] = []
    observe.add_listener(events.extend)
    yield events
    observe.remove_listener(events.extend)


def test_nobody_listens_at_first():
    assert not observe.is_enabled()


def test_a_span_tells_when_it_was_and_what(heard):
    before = time.time_ns()
    with observe.span("compile", "lower", nodes=3):
        time.sleep(0.01)
    (event,) = [event for event in heard if event.name == "lower"]
    assert event.kind == "span"
    assert event.category == "compile"
    assert event.args == {"nodes": 3}
    assert before <= event.start_ns <= time.time_ns()
    assert event.duration_ns >= 10_000_000


def test_a_span_is_emitted_when_its_body_raises(heard):
    with pytest.raises(ZeroDivisionError), observe.span("compile", "fails"):
        _ = 1 / 0
    assert [event.name for event in heard if event.kind == "span"] == ["fails"]


def test_marks_and_counters_arrive(heard):
    observe.instant("fallback", "aten.roll")
    observe.counter("memory", "cache_bytes", 12.5)
    kinds = {event.kind: event for event in heard if event.name in ("aten.roll", "cache_bytes")}
    assert kinds["instant"].category == "fallback"
    assert kinds["counter"].value == 12.5


def test_a_program_run_is_a_span_with_the_same_result(save_model, scale_model):
    program = load_program(save_model(scale_model), name="scale", options=F32)
    x = torch.randn(2, 3)
    unobserved = program.run([x, x])
    events: list[observe.Event] = []
    observe.add_listener(events.extend)
    try:
        observed = program.run([x, x])
        observe.flush()
    finally:
        observe.remove_listener(events.extend)
    assert all(torch.equal(a, b) for a, b in zip(unobserved, observed, strict=True))
    (span,) = [event for event in events if event.category == "program"]
    assert span.name == "scale"
    assert span.duration_ns > 0
    assert span.args == {"device": program.device, "device_index": 0, "stream": 0}


def test_loading_a_program_is_a_span(heard, save_model, scale_model):
    load_program(save_model(scale_model), name="scale", options=F32)
    observe.flush()
    (span,) = [event for event in heard if event.category == "compile"]
    assert span.name == "scale"
    assert span.args == {"stage": "load", "from_cache": False}


def test_a_listener_that_raises_is_removed_and_logged(heard, caplog):
    def broken(events: list[observe.Event]) -> None:
        raise LookupError("broken on purpose")

    observe.add_listener(broken)
    with caplog.at_level(logging.ERROR, logger="npu_runtime.observe"):
        observe.instant("test", "first")
        observe.instant("test", "second")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "broken on purpose" in caplog.text
    assert [event.name for event in heard if event.category == "test"] == ["first", "second"]


def test_a_removed_listener_hears_nothing_more():
    events: list[observe.Event] = []
    observe.add_listener(events.extend)
    observe.remove_listener(events.extend)
    observe.instant("test", "late")
    assert events == []
    assert not observe.is_enabled()


def test_removing_an_unknown_listener_is_harmless():
    observe.remove_listener(print)
    assert not observe.is_enabled()


def test_the_memory_counter_follows_allocation_and_release(heard):
    before = torch.npu.memory_allocated()
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
    del tensor
    observe.flush()
    values = [event.value for event in heard if event.name == "allocated_bytes"]
    assert values == [before + (1 << 20), before]


def test_torchs_profiler_sees_memory_come_and_go():
    with torch.profiler.profile(profile_memory=True) as profiler:
        tensor = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
        del tensor
    changes = [
        event.self_device_memory_usage
        for event in profiler.events()
        if event.name in ("aten::empty", "[memory]")
    ]
    assert 1 << 20 in changes
    assert -(1 << 20) in changes
