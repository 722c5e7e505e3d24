import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_llm.capture.functional import make_functional
from npu_llm.errors import CaptureError


def traced(function, *arguments):
    graph = make_fx(function)(*arguments)
    expected = function(*[argument.clone() for argument in arguments])
    return graph, expected


def test_write_into_an_own_tensor_becomes_a_new_one():
    def step(x):
        y = x * 2
        y += 1
        return y * y

    graph, expected = traced(step, torch.ones(3))
    make_functional(graph)
    assert not any("add_" in str(node.target) for node in graph.graph.nodes)
    torch.testing.assert_close(graph(torch.ones(3)), expected)
    text = graph.code
    make_functional(graph)
    assert graph.code == text


def write_into_a_view(x):
    y = x * 2
    y[0].add_(1)
    return y


def write_under_a_view(x):
    y = x * 2
    row = y.view(-1)
    y.add_(1)
    return row


def write_into_the_input(x):
    return x.add_(1)


@pytest.mark.parametrize("step", [write_into_a_view, write_under_a_view, write_into_the_input])
def test_write_that_others_see_is_refused(step):
    graph, _ = traced(step, torch.ones(2, 2))
    with pytest.raises(CaptureError, match="add_") as caught:
        make_functional(graph)
    assert caught.value.code == "writes-view"
