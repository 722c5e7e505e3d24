"""Graphs compiled to npu-ops' kernels: their results, and the choice between pipelines."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.errors import LoweringError, OptionError, WrongResultWarning
from npu_compiler.graph_compiler.records import collecting
from npu_compiler.kernel_programs.tensor_graphs import lower_tensors_to_kernels
from npu_compiler.options import CompilerConfig
from npu_ops.kernel_programs.execution import TensorExecution


@pytest.fixture(autouse=True)
def _chosen(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.delenv("NPU_COMPILE_TARGET", raising=False)
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))


@pytest.fixture
def small(on_npu: bool) -> str:
    """The target of programs of little work: kernels run on the host's cores alone."""
    return "openvino" if on_npu else "kernels"


def net(width: int = 24, *, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(10, width), nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, 7)
    ).eval()


def targets(model: Any, *inputs: torch.Tensor, **options: Any) -> list[str]:
    """Compiles and calls twice, compares both with eager; returns the programs' targets."""
    torch._dynamo.reset()
    with torch.no_grad(), collecting() as records:
        fast = torch.compile(model, backend="npu", options=options)
        for _ in range(2):
            torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    return [program.target for record in records for program in record.programs]


def test_few_rows_of_small_weights_are_kernels_and_others_are_not(small):
    assert targets(net(), torch.randn(3, 10)) == [small]
    assert targets(net(), torch.randn(9, 10)) == ["openvino"]
    wide = nn.Linear(2100, 2000).eval()
    assert targets(wide, torch.randn(1, 2100)) == ["openvino"]
    assert targets(wide, torch.randn(1, 2100), target="kernels") == [small]
    assert targets(net(), torch.randn(1, 10), target="openvino") == ["openvino"]


def test_the_environment_says_it_where_options_do_not(monkeypatch, small):
    monkeypatch.setenv("NPU_COMPILE_TARGET", "openvino")
    assert targets(net(), torch.randn(3, 10)) == ["openvino"]
    assert targets(net(), torch.randn(3, 10), target="kernels") == [small]
    monkeypatch.setenv("NPU_COMPILE_TARGET", "tpu")
    with pytest.raises(OptionError, match="NPU_COMPILE_TARGET must be"):
        torch.compile(net(), backend="npu")(torch.randn(3, 10))


def test_an_unknown_target_is_named():
    with pytest.raises(OptionError, match="target"):
        CompilerConfig(target="tpu")


class Form(nn.Module):
    """A function of an input, a matrix of 6 by 6 and a vector of 6."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(-1, 1.3, 36).reshape(6, 6))
        self.bias = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, -0.25, 3.0, 1.5]))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, self.weight, self.bias)


FORMS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "residual": (lambda x, w, b: x + F.gelu(x @ w.t(), approximate="tanh") * 0.5 - 3, (4, 6)),
    "one vector": (lambda x, w, b: F.silu(F.linear(x, w, b)), (6,)),
    "three dimensions": (lambda x, w, b: F.linear(x, w).tanh().flatten(1), (2, 1, 6)),
    "parts": (lambda x, w, b: F.linear(x, w)[:, 2:5] * F.linear(x, w)[:, :3], (3, 6)),
    "split": (lambda x, w, b: [y.sigmoid() for y in F.linear(x, w).split([2, 4], -1)], (3, 6)),
    "norms": (lambda x, w, b: F.rms_norm(F.layer_norm(x, (6,), b, w[0]), (6,), b), (5, 6)),
    "same width as rows": (lambda x, w, b: F.linear(x, w) / b, (6, 6)),
    "two results": (lambda x, w, b: (F.linear(x, w), (2 - x) * b), (2, 6)),
    "used twice": (lambda x, w, b: (y := F.linear(x, w).relu()) + F.linear(y, w) + y, (2, 6)),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_computed_as_in_eager(name, small):
    function, shape = FORMS[name]
    model, x = Form(function), torch.randn(*shape)
    assert targets(model, x, target="kernels") == [small]
    strided = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
    assert targets(model, strided, target="kernels") == [small]


REFUSED: dict[str, Callable[..., Any]] = {
    "a softmax": lambda x, w, b: F.linear(x, w).softmax(-1),
    "rows that mix": lambda x, w, b: F.linear(x, w).t() + 1,
    "a sum of rows": lambda x, w, b: F.linear(x, w).sum(0),
    "a flipped row": lambda x, w, b: F.linear(x, w).flip(-1) * 1,
    "rows spread over others": lambda x, w, b: F.linear(x, w)[:, :1] + x,
    "a product of inputs": lambda x, w, b: x @ x,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_kernel_computes_is_openvinos(name, on_npu):
    torch._dynamo.reset()
    model, x = Form(REFUSED[name]), torch.randn(6, 6)
    with torch.no_grad(), collecting() as records:
        found = torch.compile(model, backend="npu", options={"target": "kernels"})(x)
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)
    programs = [program for record in records for program in record.programs]
    assert [one.target for one in programs] == ["openvino"]
    assert ("the device is NPU" if on_npu else "aten") in programs[0].target_reason


def test_a_call_without_a_kernel_is_named():
    traced = make_fx(lambda x: [x.softmax(-1) + 1], tracing_mode="fake")(torch.randn(3, 4))
    with pytest.raises(LoweringError, match="_softmax") as caught:
        lower_tensors_to_kernels(traced, {})
    assert caught.value.code == "no-kernel"


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_results_live_where_the_inputs_do(device):
    model, x = net().to(device), torch.randn(2, 10, device=device)
    fast = torch.compile(model, backend="npu")
    with torch.no_grad():
        for _ in range(3):
            found = fast(x)
            assert found.device.type == device
            torch.testing.assert_close(found.cpu(), model(x).cpu(), rtol=1e-4, atol=1e-5)


def test_results_of_calls_are_tensors_of_their_own():
    fast = torch.compile(net(), backend="npu")
    with torch.no_grad():
        x = torch.randn(2, 10)
        found = [fast(x + step) for step in range(4)]
        kept = [one.clone() for one in found]
        fast(x - 9)
    assert all(torch.equal(one, copy) for one, copy in zip(found, kept, strict=True))


def test_nan_and_infinities_pass_as_in_eager(on_npu):
    x = torch.randn(3, 10)
    x[0, 3], x[1, 0] = torch.nan, torch.inf
    model = nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 4)).eval()
    # By default OpenVINO drops NaN in activations after products.
    options = {"nan": "propagate"} if on_npu else {}
    with torch.no_grad():
        found = torch.compile(model, backend="npu", options=options)(x)
        torch.testing.assert_close(found, model(x), equal_nan=True, rtol=1e-4, atol=1e-5)
    assert found[0].isnan().all()


def test_changed_weights_are_another_program():
    model, x = net(), torch.randn(2, 10)
    fast = torch.compile(model, backend="npu")
    with torch.no_grad():
        fast(x), fast(x)
        model[0].weight.mul_(-2)
        model[3].bias.copy_(torch.arange(7.0))
        for _ in range(2):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        model[2].weight = nn.Parameter(torch.linspace(1, 5, 24))
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_gradients_flow_where_they_are_wanted():
    model, x = net(), torch.randn(2, 10, requires_grad=True)
    fast = torch.compile(model, backend="npu")
    with torch.no_grad():
        fast(x)
    fast(x).square().sum().backward()
    found, x.grad = x.grad, None
    model(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-3, atol=1e-4)


def test_autocast_is_heard():
    model, x = net(), torch.randn(2, 10)
    fast = torch.compile(model, backend="npu")
    with torch.no_grad():
        assert fast(x).dtype is torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert fast(x).dtype is model(x).dtype


def test_another_shape_or_dtype_is_compiled_anew():
    model = net()
    fast = torch.compile(model, backend="npu", dynamic=False)
    with torch.no_grad():
        for rows in (1, 4, 2, 1):
            x = torch.randn(rows, 10)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_threads_may_call_it_at_once():
    model = net()
    fast = torch.compile(model, backend="npu")
    inputs = [torch.randn(2, 10) for _ in range(4)]
    with torch.no_grad():
        fast(inputs[0])
        expected = [model(x) for x in inputs]
    wrong: list[int] = []

    def call(index: int) -> None:
        with torch.no_grad():
            for _ in range(200):
                right = torch.allclose(fast(inputs[index]), expected[index], rtol=1e-4, atol=1e-5)
                wrong.extend([] if right else [index])

    threads = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TensorExecution.run

    def spoiled(execution: TensorExecution, inputs: Any) -> Any:
        results = original(execution, inputs)
        results[0].view(-1)[-1] += 1
        return results

    monkeypatch.setattr(TensorExecution, "run", spoiled)


def test_a_wrong_program_is_found_and_openvinos_takes_its_place(monkeypatch):
    model, x = net(), torch.randn(2, 10)
    spoil(monkeypatch)
    fast = torch.compile(model, backend="npu")
    with torch.no_grad(), collecting() as records:
        with pytest.warns(WrongResultWarning, match="OpenVINO's takes its place"):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    (program,) = (program for record in records for program in record.programs)
    assert (program.target, program.verdict.status) == ("openvino", "right")
    monkeypatch.undo()


def test_a_wrong_program_is_not_tried_by_the_next_process(monkeypatch, tmp_path):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    model, x = net(), torch.randn(2, 10)
    with monkeypatch.context() as patch:
        spoil(patch)
        with torch.no_grad(), pytest.warns(WrongResultWarning):
            torch.compile(model, backend="npu")(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert targets(model, x) == ["openvino"]


def test_verify_always_judges_each_run(monkeypatch):
    model, x = net(), torch.randn(2, 10)
    fast = torch.compile(model, backend="npu", options={"verify": "always"})
    with torch.no_grad():
        fast(x)
        spoil(monkeypatch)
        with pytest.warns(WrongResultWarning, match="kernels"):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_known_graph_is_recalled_with_its_kernels(recalled, small):
    model, x = net(), torch.randn(2, 10)
    assert targets(model, x) == [small]
    assert recalled == []
    assert targets(model, x) == [small]
    assert len(recalled) == 1
    with torch.no_grad():
        fast = torch.compile(model, backend="npu")
        fast(x)
        model[0].weight.add_(1)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert targets(net(seed=5), x) == [small]


def test_a_damaged_file_of_weights_is_made_again(tmp_path, monkeypatch, small):
    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    model, x = net(), torch.randn(2, 10)
    targets(model, x)
    (path,) = tmp_path.rglob("weights.safetensors")
    content = bytearray(path.read_bytes())
    content[-90] ^= 0xFF
    path.write_bytes(bytes(content))
    assert targets(model, x) == [small]


def test_captured_graphs_hold_programs_of_the_device():
    model = net().to("npu")
    x = torch.randn(2, 10, device="npu")
    fast = torch.compile(model, backend="npu")
    with torch.no_grad():
        fast(x)
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            result = fast(x)
        x.copy_(torch.randn(2, 10))
        graph.replay()
        torch.testing.assert_close(result.cpu(), model(x).cpu(), rtol=1e-4, atol=1e-5)
