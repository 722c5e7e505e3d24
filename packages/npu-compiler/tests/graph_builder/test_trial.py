"""The program of a graph is compared with the calls that it was recorded as."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from npu_compiler import GraphBuilder
from npu_compiler.errors import WrongResultError, WrongResultWarning
from npu_compiler.lowering import registry

aten = torch.ops.aten
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def wrong_tanh(monkeypatch):
    """A converter that is off by a hundredth."""
    import dataclasses

    import openvino.opset15 as ops

    row = registry._TABLE[aten.tanh.default]

    def convert(ctx, self):
        return ops.multiply(ops.tanh(ctx.get(self)), ctx.number(1.01, ctx.out_dtype()))

    wrong = dataclasses.replace(row, function=convert)
    monkeypatch.setitem(registry._TABLE, aten.tanh.default, wrong)


def graph_of(**options):
    graph = GraphBuilder(**options)
    torch.tanh(graph.parameter((4, 8)) @ torch.eye(8)) * 2
    return graph


def test_wrong_program_gives_torchs_results_and_says_where(wrong_tanh, close):
    graph = graph_of()
    with pytest.warns(WrongResultWarning, match=r"test_trial\.py:\d+.*is off by"):
        close(graph.run(X), X.tanh() * 2)
    close(graph.run(X + 1), (X + 1).tanh() * 2)
    found = graph.run(X.numpy())
    assert isinstance(found, np.ndarray)


def test_wrong_program_is_an_error_under_strict(wrong_tanh):
    with pytest.raises(WrongResultError, match=r"\[wrong-result\]"):
        graph_of(strict=True).run(X)


def test_comparison_can_be_left_out(wrong_tanh):
    found = graph_of(verify="off").run(X)
    assert 0.005 < float((found / (X.tanh() * 2) - 1).abs().max()) < 0.02


def compared(graph, monkeypatch):
    """Counts the runs of a graph that are compared."""
    from npu_compiler.graph_builder import trial

    runs = []
    real = trial.GraphTrial.run

    def run(self, *args, **kwargs):
        runs.append(1)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(trial.GraphTrial, "run", run)
    for _ in range(3):
        graph.run(X)
    return len(runs)


@pytest.mark.parametrize("verify, count", [("first", 1), ("always", 3), ("off", 0)])
def test_runs_are_compared_as_the_option_says(monkeypatch, verify, count):
    assert compared(graph_of(verify=verify), monkeypatch) == count


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_narrow_precision_is_no_difference(recwarn, dtype):
    x, weight = torch.randn(4, 128), torch.randn(96, 128)
    graph = GraphBuilder(dtype=dtype, verify="always")
    graph.matmul(graph.parameter((4, 128)), graph.constant(weight)).softmax(-1)
    graph.run(x)
    assert not [w for w in recwarn if issubclass(w.category, WrongResultWarning)]


def test_results_of_a_compared_run_live_where_the_inputs_do():
    graph = graph_of()
    assert graph.run(X.to("npu")).device.type == "npu"
