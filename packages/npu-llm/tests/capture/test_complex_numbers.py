import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npu_llm.capture.complex_numbers import make_real

aten = torch.ops.aten


def traced(function, *inputs) -> fx.GraphModule:
    return make_fx(function, tracing_mode="symbolic", pre_dispatch=True)(*inputs)


def has_complex(graph_module: fx.GraphModule) -> bool:
    values = (node.meta.get("val") for node in graph_module.graph.nodes)
    return any(isinstance(one, torch.Tensor) and one.is_complex() for one in values)


def rotated(features, angles):
    turns = torch.polar(torch.ones_like(angles) * 1.5, angles) * 0.75
    pairs = torch.view_as_complex(features.reshape(*features.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns.unsqueeze(-2).to("cpu")).flatten(-2)


def test_rotation_is_the_same_in_real_numbers():
    features, angles = torch.randn(3, 5, 2, 8), torch.randn(3, 5, 4)
    graph_module = traced(rotated, features, angles)
    assert has_complex(graph_module)
    make_real(graph_module)
    assert not has_complex(graph_module)
    torch.testing.assert_close(graph_module(features, angles), rotated(features, angles))


def test_complex_tensor_times_a_real_one():
    def scaled(features, factors):
        return torch.view_as_real(torch.view_as_complex(features) * factors)

    features, factors = torch.randn(3, 5, 2), torch.randn(3, 5)
    graph_module = traced(scaled, features, factors)
    make_real(graph_module)
    assert not has_complex(graph_module)
    torch.testing.assert_close(graph_module(features, factors), scaled(features, factors))


def test_calls_of_other_kinds_stay():
    def magnitude(features):
        return torch.view_as_complex(features).abs()

    graph_module = traced(magnitude, torch.randn(3, 2))
    make_real(graph_module)
    assert has_complex(graph_module)


def test_graph_without_complex_numbers_stays():
    graph_module = traced(lambda x: x.cos() * 2, torch.randn(3))
    before = [node.target for node in graph_module.graph.nodes]
    make_real(graph_module)
    assert [node.target for node in graph_module.graph.nodes] == before
