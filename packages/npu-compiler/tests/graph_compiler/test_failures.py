"""Failures of the compiler itself: results stay right, and a warning names the failure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openvino.opset15 as ops
import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from npu_compiler.errors import CompilerError, CompilerFailureWarning, LoweringError
from npu_compiler.graph_compiler import assembly, compiled_graph, kernel_building
from npu_compiler.lowering import lower, registry
from npu_compiler.lowering.registry import find_converter
from npu_compiler.torch_compile import tracing


@pytest.fixture(autouse=True)
def _uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_COMPILE_CACHE_SIZE_MB", "0")


def fail(*_: Any, **__: Any) -> Any:
    raise KeyError("a defect")


def fail_in_converter(patch: pytest.MonkeyPatch) -> None:
    def find(target: Any) -> Any:
        row = find_converter(target)
        is_tanh = target is torch.ops.aten.tanh.default
        return replace(row, function=fail) if row is not None and is_tanh else row

    patch.setattr(sys.modules["npu_compiler.lowering.lower"], "find_converter", find)


def fail_in_trace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tracing, "trace_calls", lambda *_: None)
    patch.setattr(tracing, "aot_autograd", fail)


FAILURES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "converter": fail_in_converter,
    "kernels": lambda patch: patch.setattr(kernel_building, "build_kernel_program", fail),
    "OpenVINO": lambda patch: patch.setattr(assembly, "build_program", fail),
    "passes": lambda patch: patch.setattr(compiled_graph, "run_passes", fail),
    "plan": lambda patch: patch.setattr(compiled_graph, "make_plan", fail),
    "trace": fail_in_trace,
}
_RAISED = (CompilerError, BackendCompilerFailed)


@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_runs_in_another_way(compiled, close, monkeypatch, on_npu, name):
    if name == "kernels" and on_npu:
        pytest.skip("no kernel programs there")
    FAILURES[name](monkeypatch)
    monkeypatch.setattr(compiled_graph, "_AHEAD_BYTES", 0)  # it fails on another thread first
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)).eval()
    x = torch.randn(2, 3)
    options = {"target": "kernels" if name == "kernels" else "openvino"}
    with torch.no_grad(), pytest.warns(CompilerFailureWarning, match=r"KeyError.*\[compiler-fail"):
        found = compiled(model, options=options)(x)
    close(found, model(x))
    with torch.no_grad(), pytest.raises(_RAISED, match=r"compiler-failure|cannot-lower"):
        compiled(model, options={**options, "strict": True})(x)


def test_a_checkpoint_never_runs_without_aot_autograd(compiled, monkeypatch):
    """Its second run would draw other random numbers than the first."""
    monkeypatch.setattr(tracing, "aot_autograd", fail)
    x = torch.ones(4, requires_grad=True)
    fast = compiled(lambda x: checkpoint(nn.functional.dropout, x, use_reentrant=False))
    with pytest.raises(BackendCompilerFailed, match="a defect"):
        fast(x)


def test_a_failing_backward_graph_runs_eagerly(compiled, close, monkeypatch):
    model, x = nn.Linear(3, 4), torch.randn(2, 3)
    model(x).tanh().sum().backward()
    expected = model.weight.grad
    model.zero_grad()
    run_passes = compiled_graph.run_passes

    def fail_backward(graph: Any, facts: Any, **options: Any) -> Any:
        return fail() if facts.kind == "backward" else run_passes(graph, facts, **options)

    monkeypatch.setattr(compiled_graph, "run_passes", fail_backward)
    with pytest.warns(CompilerFailureWarning, match="KeyError"):
        compiled(lambda x: model(x).tanh().sum())(x).backward()
    close(model.weight.grad, expected)


def test_a_converter_that_fails_is_a_refusal_of_its_call(monkeypatch):
    fail_in_converter(monkeypatch)
    traced = make_fx(lambda x: x.tanh() + 1, tracing_mode="fake")(torch.ones(3))
    with pytest.raises(LoweringError, match=r"KeyError.*a defect") as caught:
        lower(traced)
    assert (caught.value.code, caught.value.node_name) == ("converter-failed", "tanh")


@pytest.mark.parametrize("error", [KeyError, RuntimeError, NotImplementedError])
def test_an_error_in_a_users_converter_is_shown_with_its_line(compiled, monkeypatch, error):
    def convert(ctx: Any, **_: Any) -> Any:
        raise error("a mistake")

    tanh = torch.ops.aten.tanh.default
    place = f"{__file__}:{convert.__code__.co_firstlineno}"
    row = replace(find_converter(tanh), function=convert, place=place)
    monkeypatch.setitem(registry._TABLE, tanh, row)
    words = rf"{__file__}:{convert.__code__.co_firstlineno + 1} with {error.__name__}: .*a mistake"
    x = torch.randn(3)
    with torch.no_grad(), pytest.warns(CompilerFailureWarning, match=words) as caught:
        compiled(lambda x: x.tanh() + 1, options={"target": "openvino"})(x)
    assert "Fix the converter" in str(caught[0].message)
    with torch.no_grad(), pytest.warns(CompilerFailureWarning), pytest.raises(_RAISED, match=words):
        compiled(lambda x: x.tanh() + 2, options={"target": "openvino", "strict": True})(x)


def test_what_openvino_rejects_in_a_users_converter_is_reported_as_that(monkeypatch):
    def convert(ctx: Any, **arguments: Any) -> Any:
        return ops.reshape(ctx.get(arguments["self"]), ctx.integers([7]), False)

    tanh = torch.ops.aten.tanh.default
    row = replace(find_converter(tanh), function=convert, place=f"{__file__}:1")
    monkeypatch.setitem(registry._TABLE, tanh, row)
    traced = make_fx(lambda x: x.tanh(), tracing_mode="fake")(torch.ones(3))
    with pytest.raises(LoweringError, match="OpenVINO rejects it") as caught:
        lower(traced)
    assert caught.value.code == "cannot-lower"
