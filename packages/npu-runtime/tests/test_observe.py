import logging
import time

import pytest
import torch

from npu_runtime import load_program, observe

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


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
    assert 10_000_000 <= event.duration_ns <= time.time_ns() - before


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


def test_a_counter_is_sampled_and_keeps_its_peak_and_its_latest_value(heard):
    before = torch.npu.memory_allocated()
    for size in [4096] * 500 + [1 << 22] + [4096] * 500:
        torch.empty(size, dtype=torch.uint8, device="npu")
    kept = torch.empty(8192, dtype=torch.uint8, device="npu")
    observe.flush()
    samples = [event for event in heard if event.name == "allocated_bytes"]
    assert len(samples) < 1000
    assert max(sample.value for sample in samples) == before + (1 << 22)
    assert samples[-1].value == torch.npu.memory_allocated() == before + kept.nbytes
    times = [sample.start_ns for sample in samples]
    assert times == sorted(times)
    assert {sample.args["device_index"] for sample in samples} == {0}


def test_a_million_events_are_kept_and_the_rest_is_counted(run_python):
    done = run_python(
        "import torch\n"
        "from npu_runtime import _C, observe\n"
        "observe.add_listener(print)\n"
        "x = [torch.zeros(1, device='npu') for _ in range(1024)]; y = [one.clone() for one in x]\n"
        "for _ in range(1025): torch._foreach_copy_(x, y)\n"
        "events, dropped = _C.drain_events()\n"
        "print(len(events), len(events) + dropped >= 1025 * 1024)\n"
    )
    assert done.stdout.split() == [str(1 << 20), "True"], done.stderr


def test_events_that_were_dropped_are_told_as_a_counter(heard, monkeypatch):
    monkeypatch.setattr("npu_runtime._C.drain_events", lambda: ([], 7))
    observe.flush()
    (event,) = heard
    assert (event.kind, event.category, event.name) == ("counter", "observe", "dropped_events")
    assert event.value == 7


def test_an_enqueued_run_tells_who_enqueued_it_when_and_where(run_python):
    done = run_python(
        "import json, threading, time, torch, npu_runtime, tempfile, os\n"
        "import numpy as np, openvino as ov\n"
        "from openvino import opset13 as ops\n"
        "from npu_runtime import observe, sim\n"
        "p = ops.parameter([4], np.float32); path = os.path.join(tempfile.mkdtemp(), 'm.xml')\n"
        "ov.save_model(ov.Model([ops.relu(p)], [p], 'relu'), path)\n"
        "options = {'INFERENCE_PRECISION_HINT': 'f32'}\n"
        "run = npu_runtime.load_program(path, name='relu', options=options, device_index=1).run\n"
        "x = torch.ones(4, device='npu:1'); heard = []; observe.add_listener(heard.extend)\n"
        "with sim.delay(100_000, 110_000), torch.npu.stream(torch.npu.Stream('npu:1')):\n"
        "    before = time.time_ns(); run([x]); after = time.time_ns()\n"
        "    torch.npu.synchronize(1)\n"
        "    stream = torch.npu.current_stream(1).stream_id\n"
        "observe.flush()\n"
        "(launch,) = [e for e in heard if e.category == 'launch']\n"
        "(done,) = [e for e in heard if e.category == 'program']\n"
        "me = threading.get_native_id()\n"
        "assert launch.thread_id == done.args['enqueue_thread_id'] == me != done.thread_id\n"
        "assert before <= done.args['enqueue_ns'] == launch.start_ns <= after\n"
        "assert done.args['device_index'] == launch.args['device_index'] == 1\n"
        "assert done.args['stream'] == launch.args['stream'] == stream\n"
        "assert launch.duration_ns < 100_000_000 <= done.duration_ns\n"
        "assert [e.name for e in heard if e.category == 'sync'] == ['device']\n"
        "print('ok')\n",
        NPU_DRIVER="sim",
        NPU_DEVICE="SIM2",
    )
    assert done.stdout.strip() == "ok", done.stderr


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
