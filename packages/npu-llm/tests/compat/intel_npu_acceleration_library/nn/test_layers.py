"""Layers created from tensors."""

import pytest
import torch

from npu_llm.compat.intel_npu_acceleration_library import nn
from npu_llm.compat.intel_npu_acceleration_library.dtypes import int4
from npu_llm.compat.intel_npu_acceleration_library.nn.layers import (
    Linear,
    Module,
    NPUContextManager,
    QuantizedLinear,
    convert_to_npu_module,
)
from npu_llm.errors import CompatError, OptionError


def test_scales_are_kept_times_the_root_of_the_inputs():
    weight = torch.randn(4, 16)
    layer = Linear.fromTensor(weight, None, torch.int8)
    assert type(layer) is QuantizedLinear
    stored = layer.weight * layer.scale.float() / 4
    torch.testing.assert_close(stored, weight, atol=0.05, rtol=0)
    packed = Linear.fromTensor(weight, None, int4)
    assert (packed.weight.shape, packed.weight.dtype, packed.inC) == ((4, 8), torch.uint8, 16)


def test_a_layer_of_very_many_rows_stays_torchs():
    layer = torch.nn.Linear(1, 2**17 + 1)
    assert Linear.fromTorch(layer) is layer


def test_gradients_of_batches_are_torchs():
    torch.manual_seed(0)
    theirs = torch.nn.Linear(8, 4)
    ours = Linear.fromTorch(theirs, torch.float32)
    x = torch.randn(2, 3, 8, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    ours(x).square().sum().backward()
    theirs(y).square().sum().backward()
    for found, expected in ((x, y), (ours.weight, theirs.weight), (ours.bias, theirs.bias)):
        torch.testing.assert_close(found.grad, expected.grad, atol=0.02, rtol=0.01)


def test_integers_of_another_dtype_are_refused():
    with pytest.raises(OptionError) as caught:
        QuantizedLinear(torch.ones(2, 2), torch.ones(2, 1))
    assert caught.value.code == "quantize-weight"


def test_four_bits_use_all_integers_where_they_change_a_row_least():
    layer = torch.nn.Linear(32, 4, bias=False)
    with torch.no_grad():
        layer.weight[0] = 0
    made = QuantizedLinear.nearest(layer, int4)
    halves = torch.stack([made.weight & 15, made.weight >> 4], -1).flatten(1).to(torch.int8)
    values = torch.where(halves > 7, halves - 16, halves)
    stored = values * made.scale.float() / 32**0.5
    error = (stored - layer.weight).square().sum() / layer.weight.square().sum()
    assert error < 0.008
    assert values[1:].amin() == -8
    assert not stored[0].any()


def test_a_weight_of_another_shape_is_refused():
    for weight in (torch.ones(4), torch.ones(1, 1, 1, 1)):
        with pytest.raises(OptionError, match=r"`weight` must be \(outputs, inputs\)"):
            Linear(weight)


class Sums(Module):
    """A custom module of a program."""

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
