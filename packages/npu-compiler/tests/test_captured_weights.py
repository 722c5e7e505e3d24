"""Compiled models in captured graphs, with weights that change after the capture."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from npu_runtime import InputError


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 4)])
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.layers[0](x).relu()) * self.scale


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TwoLayers().to("npu").eval()


@pytest.fixture
def x():
    return torch.randn(2, 8).to("npu")


@torch.no_grad()
def capture(model, x, **options):
    compiled = torch.compile(model, backend="npu")
    compiled(x)
    graph = torch.npu.NPUGraph(**options)
    with torch.npu.graph(graph):
        result = compiled(x)
    return graph, result, compiled


def assert_refused(graph, *words):
    with pytest.raises(InputError) as caught:
        graph.replay()
    assert caught.value.code == "capture-stale"
    for word in words:
        assert word in str(caught.value)


CHANGES = {
    "in place": lambda m: m.layers[1].weight.mul_(2),
    "data": lambda m: setattr(m.layers[1].weight, "data", m.layers[1].weight.data * 2),
    "load": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "step": lambda m: torch.optim.SGD([_with_gradient(m.layers[1].weight)], lr=0.1).step(),
}


def _with_gradient(weight):
    weight.grad = torch.ones_like(weight)
    return weight


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_changed_weight_is_named_and_a_new_capture_is_right(model, x, change):
    graph, _, compiled = capture(model, x)
    with torch.no_grad():
        CHANGES[change](model)
        assert_refused(graph, "and 4 more" if change == "load" else "a change of layers.1.weight.")
        graph.reset()
        with torch.npu.graph(graph):
            result = compiled(x)
        x.mul_(2)
        graph.replay()
        torch.testing.assert_close(result.cpu(), model(x).cpu(), rtol=1e-4, atol=1e-5)


def test_a_changed_buffer_is_named(model, x):
    graph, _, _ = capture(model, x)
    model.scale.add_(1)
    assert_refused(graph, "a change of scale.")


def test_a_program_that_is_compiled_in_the_capture_tells_it_of_its_weights(model, x):
    graph = torch.npu.NPUGraph()
    with torch.no_grad(), torch.npu.graph(graph):
        torch.compile(model, backend="npu")(x)
    with torch.no_grad():
        model.layers[0].bias.zero_()
    assert_refused(graph, "a change of layers.0.bias.")


def test_weights_that_did_not_change_are_replayed(model, x):
    graph, result, _ = capture(model, x)
    with torch.no_grad():
        x.add_(1)
        graph.replay()
        torch.testing.assert_close(result.cpu(), model(x).cpu(), rtol=1e-4, atol=1e-5)


def test_a_graph_that_follows_computes_with_the_new_weights(model, x):
    graph, result, compiled = capture(model, x, weights="follow")
    with torch.no_grad():
        for change in [*CHANGES.values()] * 2:
            change(model)
            graph.replay()
            torch.testing.assert_close(result.cpu(), model(x).cpu(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(compiled(x).cpu(), model(x).cpu(), rtol=1e-4, atol=1e-5)


def test_a_graph_that_another_process_compiled_knows_its_weights_too(model, x, tmp_path):
    def start():
        torch._dynamo.reset()
        options = {"cache_dir": str(tmp_path)}
        compiled = torch.compile(model, backend="npu", options=options)
        compiled(x)
        return compiled

    with torch.no_grad():
        start()
        compiled = start()  # found in the cache, as by a later process
        for weights in ("refuse", "follow"):
            graph = torch.npu.NPUGraph(weights=weights)
            with torch.npu.graph(graph):
                result = compiled(x)
            model.layers[0].weight.mul_(2)
            if weights == "refuse":
                assert_refused(graph, "a change of layers.0.weight.")
            else:
                graph.replay()
                torch.testing.assert_close(result.cpu(), model(x).cpu(), rtol=1e-4, atol=1e-5)


def test_graphed_callables_refuse_a_changed_weight_or_follow_it(model, x):
    module = torch.compile(model, backend="npu", options={"training": False})
    for weights in ("refuse", "follow"):
        with torch.no_grad():
            graphed = torch.npu.make_graphed_callables(
                lambda given: module(given), (x,), weights=weights
            )
            graphed(x)
            model.layers[0].weight.mul_(2)
            if weights == "refuse":
                with pytest.raises(InputError) as caught:
                    graphed(x)
                assert caught.value.code == "capture-stale"
                assert "layers.0.weight" in str(caught.value)
            else:
                torch.testing.assert_close(graphed(x).cpu(), model(x).cpu(), rtol=1e-4, atol=1e-5)
