"""torch.npu.make_graphed_callables over compiled modules: both passes are programs."""

import copy
import os
import sys

import pytest
import torch


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)).to(
        "npu"
    )


def losses(step, model: torch.nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 32, device="npu").reshape(4, 8)
    seen = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = (step(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


def test_training_with_replayed_passes_equals_eager_training():
    model = small_model()
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend="npu")
    step = torch.npu.make_graphed_callables(compiled, (torch.zeros(4, 8, device="npu"),))
    expected = losses(reference, reference)
    assert losses(step, model) == pytest.approx(expected, rel=1e-3)
    assert expected[-1] < expected[0]


def test_a_compiled_model_runs_where_the_driver_guards_its_memory(run_python):
    code = (
        "import torch\n"
        "model = torch.nn.Linear(4, 3).to('npu')\n"
        "x = torch.ones(2, 4, device='npu')\n"
        "with torch.no_grad():\n"
        "    y = torch.compile(model, backend='npu')(x)\n"
        "    print(torch.allclose(y, model(x), atol=1e-5))"
    )
    simulated = os.environ | {"NPU_DRIVER": "sim", "NPU_DEVICE": "SIM"}
    done = run_python([sys.executable, "-c", code], env=simulated, timeout=120)
    assert done.stdout.split() == ["True"], done.stderr


def test_modules_of_other_sizes_are_captured_one_after_the_other():
    torch._dynamo.reset()
    for width, height, rows in ((4, 4, 2), (6, 3, 2), (6, 3, 5)):
        model = torch.nn.Linear(width, height).to("npu")
        sample = torch.zeros(rows, width, device="npu")
        step = torch.npu.make_graphed_callables(torch.compile(model, backend="npu"), (sample,))
        x = torch.randn(rows, width, device="npu")
        y = step(x)
        y.sum().backward()
        torch.testing.assert_close(y, torch.nn.functional.linear(x, model.weight, model.bias))
        torch.testing.assert_close(model.weight.grad, x.sum(0).expand_as(model.weight))


def test_a_graph_with_sizes_that_vary_is_captured_for_those_of_the_step():
    torch._dynamo.reset()
    linear = torch.nn.Linear(4, 3).to("npu")
    compiled = torch.compile(linear, backend="npu", dynamic=True)
    with torch.no_grad():
        for rows in (2, 5):
            x, graph = torch.zeros(rows, 4, device="npu"), torch.npu.NPUGraph()
            compiled(x)
            with torch.npu.graph(graph):
                y = compiled(x)
            x.copy_(torch.randn(rows, 4))
            graph.replay()
            torch.testing.assert_close(y, linear(x))
