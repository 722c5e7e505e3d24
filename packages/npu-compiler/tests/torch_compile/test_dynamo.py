"""Changes of npu to dynamo's compilations and to the code before a call."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._dynamo import config, graph_bytecode_inputs

import npu_compiler  # noqa: F401


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def stored(monkeypatch):
    """The calls that look up streams and events before a graph runs."""
    calls = []
    store = graph_bytecode_inputs.store_user_object_weakrefs

    def spy(*objects):
        calls.append(objects)
        store(*objects)

    monkeypatch.setattr(graph_bytecode_inputs, "store_user_object_weakrefs", spy)
    return calls


def test_the_collector_is_paused_while_dynamo_traces(monkeypatch):
    import torch._dynamo.convert_frame as frames

    states = []
    trace = frames.trace_frame

    def spy(*given, **named):
        states.append(gc.isenabled())
        return trace(*given, **named)

    monkeypatch.setattr(frames, "trace_frame", spy)
    for _ in range(2):
        torch._dynamo.reset()  # ends the watch, and the next graph starts it anew
        torch.compile(lambda x: x - 1, backend="npu")(torch.ones(2))
        states.clear()
        torch.compile(lambda x: x + 1, backend="npu")(torch.ones(3))
        assert states == [False]
        assert gc.isenabled()


def test_a_failed_trace_leaves_the_settings_as_they_were():
    def broken(x):
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(broken, backend="npu", fullgraph=True)(torch.ones(3))
    assert gc.isenabled()
    assert config.record_runtime_overhead


def test_a_call_looks_up_no_stream_that_it_does_not_use(stored):
    compiled = torch.compile(lambda x: x * 2, backend="npu")
    assert compiled(torch.ones(3)).tolist() == compiled(torch.ones(3)).tolist() == [2.0] * 3
    assert not stored
    assert config.record_runtime_overhead


def test_a_stream_that_the_code_uses_is_looked_up_at_each_call():
    def with_stream(x):
        return x * 2, torch.accelerator.current_stream()

    compiled = torch.compile(with_stream, backend="npu")
    for _ in range(2):
        doubled, stream = compiled(torch.ones(3))
        assert doubled.tolist() == [2.0] * 3
        assert stream == torch.accelerator.current_stream()
    other = torch.npu.Stream()
    with torch.npu.stream(other):
        assert compiled(torch.ones(3))[1] == other
