import operator

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npu_llm.capture.graph_rewrites import compute_known_numbers, make_real
from npu_llm.capture.step import capture_step

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


def simplified(function, *inputs):
    graph_module = make_fx(function, pre_dispatch=True, _allow_non_fake_inputs=True)(*inputs)
    compute_known_numbers(graph_module)
    return graph_module, [node.target for node in graph_module.graph.nodes]


def test_a_quantile_of_a_number_is_computed_once():
    def step(x):
        return x * torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(0.9))

    x = torch.randn(3, 5)
    graph_module, targets = simplified(step, x)
    assert aten.erfinv.default not in targets
    torch.testing.assert_close(graph_module(x), step(x))


def test_what_depends_on_an_input_stays():
    x = torch.tensor(0.3)
    graph_module, targets = simplified(lambda x: torch.erfinv(x) + torch.tensor(2.0), x)
    assert aten.erfinv.default in targets
    assert graph_module(x) == torch.erfinv(x) + 2.0


def run(captured, ids, past):
    tokens = ids.shape[1]
    positions = torch.arange(past[0].shape[2], past[0].shape[2] + tokens)
    mask = torch.ones(ids.shape[0], int(positions[-1]) + 1, dtype=torch.int64)
    arguments = (ids, mask, positions.expand(*ids.shape), torch.arange(tokens))
    with torch.no_grad():
        return captured.graph_module(*arguments, *past)


@pytest.fixture(scope="module")
def indexed(tiny):
    """A model that chooses 16 tokens, and its step."""
    model = tiny("deepseek_v32").reference
    model.set_experts_implementation("batched_mm")
    return model, capture_step(model)


@pytest.mark.parametrize("tokens", [1, 7, 16, 17, 40])
def test_numbers_are_the_models_on_both_sides_of_the_choice(indexed, tokens):
    model, captured = indexed
    ids = torch.randint(3, 97, (2, tokens + 2), generator=torch.Generator().manual_seed(tokens))
    with torch.no_grad():
        expected = model(ids).logits
    past = [torch.zeros(2, heads, 0, size) for heads, size in captured.caches]
    first, *past = run(captured, ids[:, :tokens], past)
    second, *past = run(captured, ids[:, tokens:], past)
    torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=1e-4, atol=1e-4)
    assert [tuple(one.shape) for one in past] == [
        (2, heads, tokens + 2, size) for heads, size in captured.caches
    ]


def test_choice_matters_beyond_its_number(indexed):
    model, _ = indexed
    ids = torch.randint(3, 97, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        sparse = model(ids).logits
        for layer in model.model.layers:
            layer.self_attn.indexer.index_topk = 64
        dense = model(ids).logits
        for layer in model.model.layers:
            layer.self_attn.indexer.index_topk = 16
    torch.testing.assert_close(sparse[:, :16], dense[:, :16], rtol=1e-4, atol=1e-4)
    assert (sparse[:, 24:] - dense[:, 24:]).abs().max() > 1e-2


def test_a_choice_among_experts_stays_as_it_is(indexed):
    _, captured = indexed
    nodes = captured.graph_module.graph.find_nodes(op="call_function", target=aten.topk.default)
    counts = [node.args[1] for node in nodes]
    among_tokens = [count for count in counts if not isinstance(count, int)]
    assert len(among_tokens) == 2
    assert all(count.target is torch.sym_min for count in among_tokens)
    assert all(count.args[0] == 16 for count in among_tokens)
    assert 2 in counts
    assert operator.lt not in [node.target for node in captured.graph_module.graph.nodes]
