"""Modules that run programs, and graphs built in a `with` block."""

import pytest
import torch

from npu_llm.compat.intel_npu_acceleration_library import nn
from npu_llm.compat.intel_npu_acceleration_library.nn.module import (
    Module,
    NPUContextManager,
    convert_to_npu_module,
)
from npu_llm.errors import CompatError


class Sums(Module):
    """A module of a program's own."""

    def __init__(self):
        super().__init__(profile=False)
        self.layer = torch.nn.Linear(6, 4)

    def forward(self, x, y=None):
        return self.layer(x if y is None else x + y["there"][0])


def test_a_module_takes_gradients_in_training_alone():
    model, x = Sums(), torch.randn(3, 6)
    expected = model.layer(x + x).detach()
    model(x).sum().backward()
    assert model.layer.weight.grad is not None
    found = model.eval()(x, {"there": (x,)})
    assert not found.requires_grad
    torch.testing.assert_close(found, expected)


def test_a_wrapper_has_the_names_of_its_module():
    model = torch.nn.Linear(6, 4).half()
    wrapped = convert_to_npu_module(model)
    assert wrapped.module is model
    assert isinstance(wrapped, Module)
    assert list(wrapped.state_dict()) == ["weight", "bias"]


def test_a_graph_is_compiled_where_its_block_ends():
    with NPUContextManager() as graph:
        product = graph.Tensor((2, 3)) * graph.Constant(torch.full((2, 3), 2.0).half())
        torch.nn.functional.relu(product)
    x = torch.tensor([[1.0, -2, 3], [-4, 5, -6]]).half()
    torch.testing.assert_close(graph(x), (2 * x).relu())


def fail_while_building():
    with NPUContextManager() as graph:
        graph.Tensor((2, 3)).no_such_method()


def test_an_error_in_the_block_goes_on():
    with pytest.raises(AttributeError):
        fail_while_building()


def test_attention_of_an_older_transformers_is_refused_by_name():
    with pytest.raises(CompatError) as caught:
        nn.LlamaAttention  # noqa: B018
    assert caught.value.code == "compat-absent"
