"""explain(): the object, the table and the JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import npu_compiler
from npu_compiler import LoweringError


def with_a_hole(x):
    y = torch.sin(x) @ x.t()
    return torch.i0(torch.tanh(y)).relu() @ y


@pytest.fixture
def explanation():
    with torch.no_grad():
        return npu_compiler.explain(with_a_hole, torch.randn(4, 6))


def test_counts_add_up(explanation):
    assert explanation.program_count == 2
    assert explanation.lowered_count + len(explanation.eager) == explanation.node_count
    assert explanation.graph_breaks == {}
    assert 0 < explanation.compile_time_s < explanation.total_time_s


def test_eager_call_has_reason_and_line(explanation):
    (node,) = explanation.eager
    assert node.op == "aten.i0.default"
    assert node.reason.startswith("no converter registered")
    assert "test_explain.py:" in node.source


def test_table_shows_programs_and_eager_calls(explanation):
    text = str(explanation)
    assert "2 programs" in text
    assert "aten.i0.default" in text
    assert "test_explain.py:" in text


def test_json_has_everything(explanation):
    content = json.loads(explanation.to_json())
    assert content["program_count"] == 2
    assert content["graphs"][0]["eager"][0]["op"] == "aten.i0.default"
    assert content["graphs"][0]["programs"][0]["precision"] == "float32"


def test_explanation_is_frozen(explanation):
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation.total_time_s = 0.0


def test_graph_breaks_are_counted_with_their_reason():
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    with torch.no_grad():
        found = npu_compiler.explain(broken, torch.randn(4))
    assert len(found.graphs) == 2
    assert sum(found.graph_breaks.values()) == 1
    assert "1 graph break" in str(found)


def test_explaining_a_compiled_model_explains_the_model():
    model = torch.compile(torch.nn.Linear(4, 4).eval(), backend="npu")
    x = torch.randn(2, 4)
    with torch.no_grad():
        model(x)
        assert npu_compiler.explain(model, x).program_count == 1
        assert npu_compiler.explain(model, x).program_count == 1


def test_a_model_in_eval_mode_has_inference_graphs():
    model = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)
    assert [graph.kind for graph in npu_compiler.explain(model.eval(), x).graphs] == ["inference"]
    assert [graph.kind for graph in npu_compiler.explain(model.train(), x).graphs] == ["forward"]


def test_strict_explains_by_an_error():
    with torch.no_grad(), pytest.raises(LoweringError) as error:
        npu_compiler.explain(with_a_hole, torch.randn(4, 6), options={"strict": True})
    assert error.value.code == "no-converter"


def test_spans_of_the_stages_are_emitted(monkeypatch, tmp_path):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    from npu_runtime import observe

    events = []
    observe.add_listener(events.extend)
    try:
        with torch.no_grad():
            npu_compiler.explain(with_a_hole, torch.randn(4, 6))
    finally:
        observe.remove_listener(events.extend)
    stages = {event.name for event in events if event.category == "compile"}
    assert {"capture", "passes", "partition", "key", "lower", "store"} <= stages
