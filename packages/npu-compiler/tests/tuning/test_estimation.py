"""Ranking ways to compile by a compiler's estimate, with a compiler that is made up."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

import npu_compiler
from npu_compiler.cli import main
from npu_compiler.errors import OptionError, TargetError
from npu_compiler.target_compiler.report import ESTIMATE_NOTE
from npu_compiler.tuning import estimation
from npu_compiler.tuning.store import TuningStore

X = torch.randn(2, 16)


class Compiler:
    """Estimates a microsecond for each product, and refuses the given candidates."""

    version = "9.9"

    def __init__(self):
        self.refused = None
        self.models = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def compile(self, model, target):
        kinds = Counter(node.get_type_name() for node in model.get_ops())
        self.models.append((kinds, target.number))
        estimate = SimpleNamespace(latency_ms=kinds["MatMul"] / 1e3)
        is_accepted = self.refused not in kinds
        reason = "" if is_accepted else f"cannot compile {self.refused}"
        return SimpleNamespace(is_accepted=is_accepted, reason=reason, estimate=estimate)


@pytest.fixture
def compiler(monkeypatch):
    made = Compiler()
    monkeypatch.setattr(estimation, "target_compiler", lambda: made)
    return made


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    return TuningStore()


class Heads(torch.nn.Module):
    """Three layers that read one input: one product, if they are merged."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 8) for _ in range(3))

    def forward(self, x):
        return [layer(x) for layer in self.layers]


@pytest.fixture
def model():
    return Heads().eval()


def test_ways_are_ranked_by_estimates_for_the_target(store, compiler, model):
    (record,) = npu_compiler.tune(model, X, target="lunar-lake").records
    assert record.chosen == "merged linears"
    assert record.times_us["default"] == 3.0
    assert record.times_us["merged linears"] == 1.0
    assert record.errors["merged linears"] <= 1e-4
    assert record.device == "NPU 4000 (Lunar Lake)"
    assert record.estimated_by == "9.9"
    assert "not of an NPU" in record.refused["no snippets"]
    assert {target for _, target in compiler.models} == {"4000"}
    assert store.read(record.key) == record


def test_report_says_that_times_are_estimates_of_a_compiler(store, compiler, model):
    report = npu_compiler.tune(model, X, target="4000")
    (line,) = [line for line in str(report).splitlines() if "x the default" in line]
    assert line.endswith(f"on NPU 4000 (Lunar Lake) ({ESTIMATE_NOTE}; compiler 9.9)")


def test_estimates_are_never_taken_for_measurements(store, compiler, model, compiled):
    (estimated,) = npu_compiler.tune(model, X, target="4000").records
    torch._dynamo.reset()
    with torch.no_grad():
        fast = compiled(model)
        fast(X)
    assert fast.records[-1].tuned is None
    torch._dynamo.reset()
    (measured,) = npu_compiler.tune(model, X, budget_s=0.1).records
    (other,) = npu_compiler.tune(model, X, target="5010").records
    assert measured.estimated_by == ""
    assert {record.key for record in store.records()} == {
        estimated.key,
        measured.key,
        other.key,
    }


def test_graph_that_the_compiler_refuses_has_no_record(store, compiler, model):
    compiler.refused = "MatMul"
    report = npu_compiler.tune(model, X, target="4000")
    assert report.records == ()
    (reason,) = report.skipped.values()
    assert "cannot compile MatMul" in reason


def test_graph_with_a_part_on_the_host_has_no_record(store, compiler):
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU())
    report = npu_compiler.tune(
        model.eval(), X, target="4000", options={"fallback_ops": ["aten.relu.default"]}
    )
    (reason,) = report.skipped.values()
    assert "would run on the host, which has no estimate" in reason


def test_kernels_of_the_host_have_no_estimate(store, compiler, model):
    report = npu_compiler.tune(model, X, target="4000", options={"target": "kernels"})
    assert "kernels of the host" in next(iter(report.skipped.values()))


def test_estimates_of_a_script(store, compiler, tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "layers = torch.nn.ModuleList(torch.nn.Linear(16, 8) for _ in range(3)).eval()\n"
        "run = torch.compile(lambda x: [layer(x) for layer in layers], backend='npu')\n"
        "with torch.no_grad():\n    run(torch.ones(2, 16))\n"
    )
    assert main(["tune", "--target", "lunar-lake", str(script)]) == 0
    printed = capsys.readouterr().out
    assert "merged linears, 3.00x the default on NPU 4000 (Lunar Lake)" in printed
    assert ESTIMATE_NOTE in printed


def test_target_without_a_script_is_refused(store, capsys):
    assert main(["tune", "--target", "lunar-lake"]) == 2
    assert "--target" in capsys.readouterr().err


def test_unknown_target_and_absent_compiler_are_errors(store, model, monkeypatch):
    with pytest.raises(OptionError, match=r"\[unknown-target\]"):
        npu_compiler.tune(model, X, target="moon-lake")

    def absent():
        raise TargetError("none is installed", code="target-absent")

    monkeypatch.setattr(estimation, "target_compiler", absent)
    with pytest.raises(TargetError, match=r"\[target-absent\]"):
        npu_compiler.tune(model, X, target="4000")
