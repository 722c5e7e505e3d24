import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_llm.capture.known_numbers import compute_known_numbers

aten = torch.ops.aten


def traced(function, *inputs):
    graph_module = make_fx(function, pre_dispatch=True, _allow_non_fake_inputs=True)(*inputs)
    compute_known_numbers(graph_module)
    return graph_module, [node.target for node in graph_module.graph.nodes]


def test_a_quantile_of_a_number_is_computed_once():
    def step(x):
        return x * torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(0.9))

    x = torch.randn(3, 5)
    graph_module, targets = traced(step, x)
    assert aten.erfinv.default not in targets
    torch.testing.assert_close(graph_module(x), step(x))


def test_what_depends_on_an_input_stays():
    x = torch.tensor(0.3)
    graph_module, targets = traced(lambda x: torch.erfinv(x) + torch.tensor(2.0), x)
    assert aten.erfinv.default in targets
    assert graph_module(x) == torch.erfinv(x) + 2.0
