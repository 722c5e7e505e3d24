"""Measuring ways to compile, and taking the recorded one."""

from __future__ import annotations

import pytest
import torch

import npu_compiler
import npu_runtime
from npu_compiler.graph_compiler.records import collecting
from npu_compiler.tuning import measuring
from npu_compiler.tuning.candidates import CANDIDATES
from npu_compiler.tuning.store import TuningStore


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    return TuningStore()


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


X = torch.randn(2, 16)


def choose(monkeypatch, **times_us):
    """Sets the measured times of the default and of the named candidates."""

    def measured(graphs, inputs, budget_s):
        return {name: times_us.get(name.replace(" ", "_"), 100.0) for name in graphs}

    names = {"default", *(name.replace("_", " ") for name in times_us)}
    candidates = tuple(one for one in CANDIDATES if one.name in names)
    assert len(candidates) == len(names)
    monkeypatch.setattr(measuring, "CANDIDATES", candidates)
    monkeypatch.setattr(measuring, "_times_us", measured)


def test_ways_are_measured_and_the_fastest_is_recorded(store, model):
    report = npu_compiler.tune(model.eval(), X, budget_s=0.1)
    (record,) = report.records
    assert store.read(record.key) == record
    assert record.times_us[record.chosen] <= record.times_us["default"]
    assert record.speedup >= 1
    assert set(record.times_us) | set(record.refused) == {one.name for one in CANDIDATES}
    assert all(error <= 1e-4 for error in record.errors.values())
    assert record.chosen in str(report)


def test_recorded_way_is_taken_by_the_next_compilation(store, model, compiled, close, monkeypatch):
    choose(monkeypatch, host_kernels=50.0)
    model.eval()
    (record,) = npu_compiler.tune(model, X).records
    assert record.chosen == "host kernels"
    torch._dynamo.reset()
    fast = compiled(model)
    with torch.no_grad():
        close(fast(X), model(X))
    assert fast.records[-1].tuned == "host kernels"
    assert fast.records[-1].programs == ()


def test_mode_measures_at_the_first_call_and_only_once(store, model, close, monkeypatch):
    choose(monkeypatch, host_kernels=50.0)
    model.eval()
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad(), collecting() as records:
            close(torch.compile(model, backend="npu", mode="max-autotune")(X), model(X))
        assert records[-1].tuned == "host kernels"
        (record,) = store.records()
        monkeypatch.setattr(measuring, "_times_us", None)  # raises if anybody measures again
    assert record.chosen == "host kernels"


def test_way_that_is_no_faster_is_not_chosen(store, model, monkeypatch):
    choose(monkeypatch, no_snippets=98.0)
    (record,) = npu_compiler.tune(model.eval(), X).records
    assert record.chosen == "default"


@pytest.mark.skipif(
    "BF16" not in npu_runtime.device_info().capabilities,
    reason="without bfloat16 arithmetic that way is computed in float32, and right",
)
def test_fast_way_that_is_wrong_is_refused(store, model, monkeypatch):
    choose(monkeypatch, bfloat16=1.0)
    (record,) = npu_compiler.tune(model.eval(), X, max_error=1e-5).records
    assert record.chosen != "bfloat16"
    assert record.refused["bfloat16"].startswith("error")


def test_allowed_error_lets_half_precision_win(store, model, monkeypatch, compiled):
    choose(monkeypatch, bfloat16=1.0)
    model.eval()
    (record,) = npu_compiler.tune(model, X, max_error=0.1).records
    assert record.chosen == "bfloat16"
    torch._dynamo.reset()
    fast = compiled(model)
    with torch.no_grad():
        fast(X)
    assert fast.records[-1].programs[0].precision == "bfloat16"


def test_other_sizes_and_options_are_not_tuned(store, model, compiled, monkeypatch):
    choose(monkeypatch, host_kernels=50.0)
    model.eval()
    npu_compiler.tune(model, X)
    torch._dynamo.reset()
    with torch.no_grad():
        wide = compiled(model)
        wide(torch.randn(5, 16))
        assert wide.records[-1].tuned is None
        torch._dynamo.reset()
        half = compiled(model, options={"dtype": "bfloat16"})
        half(X)
        assert half.records[-1].tuned is None


def test_graph_that_writes_to_an_input_is_not_measured(store):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            self.count.add_(x)
            return self.count * 2

    model = Counter()
    report = npu_compiler.tune(model, torch.ones(3))
    assert report.records == ()
    (reason,) = report.skipped.values()
    assert "writes" in reason
    assert model.count.tolist() == [1.0, 1.0, 1.0]


def test_random_graph_is_not_measured(store):
    report = npu_compiler.tune(lambda x: torch.rand_like(x) + x.sin(), X)
    assert "random" in next(iter(report.skipped.values()))


def test_first_call_gives_the_result(store, model):
    seen = []
    model.eval()

    def function(x):
        y = model(x)
        seen.append(True)
        return y

    npu_compiler.tune(function, X, budget_s=0.1)
    with torch.no_grad():
        torch._dynamo.reset()
        assert torch.allclose(torch.compile(model, backend="npu")(X), model(X), atol=1e-5)


def test_damaged_record_is_ignored(store, model, compiled, caplog, monkeypatch):
    choose(monkeypatch, host_kernels=50.0)
    model.eval()
    (record,) = npu_compiler.tune(model, X).records
    (store.directory / f"{record.key}.json").write_text("{")
    torch._dynamo.reset()
    fast = compiled(model)
    with torch.no_grad():
        fast(X)
    assert fast.records[-1].tuned is None
    assert "cannot be read" in caplog.text
