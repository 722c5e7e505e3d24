"""Quantization by data: its gain over rounding to nearest, and that plugins run it."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.errors import OptionError
from npu_compiler.lowering import lower
from npu_compiler.openvino_core import openvino_core
from npu_compiler.programs import compile_options, load_model
from npu_compiler.quantize import (
    compress_weights,
    compress_weights_by_data,
    quantize_activations,
)


class Gated(nn.Module):
    """A norm before gated products, as in language models; some channels are large."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.gate = nn.Linear(64, 128, bias=False)
        self.up = nn.Linear(64, 128, bias=False)
        self.down = nn.Linear(128, 64, bias=False)
        self.head = nn.Linear(64, 32, bias=False)
        with torch.no_grad():
            self.norm.weight[::16] *= 30

    def forward(self, x):
        h = self.norm(x)
        return self.head(x + self.down(nn.functional.silu(self.gate(h)) * self.up(h)))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def lowered(module, x):
    """The module's model; weights are constants that share its memory."""
    names, weights = zip(*module.named_parameters(), strict=True)

    def call(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    with torch.no_grad():
        graph = make_fx(call, tracing_mode="fake")(x, *weights)
    found = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    constants = {n: w.detach() for n, w in zip(found[1:], weights, strict=True)}
    return lower(graph, constants=constants).model


def error_of(model, module, x):
    program = load_model(model, name="test", options=compile_options("float32"))
    with torch.no_grad():
        expected = module(x)
    return float((program.run([x])[0] - expected).norm() / expected.norm())


def types_that_run(model, kind):
    """Element types in which the CPU plugin runs the nodes of a kind."""
    compiled = openvino_core().compile_model(model, "CPU", compile_options("float32", device="CPU"))
    return {
        node.get_rt_info()["runtimePrecision"].astype(str)
        for node in compiled.get_runtime_model().get_ordered_ops()
        if node.get_rt_info()["layerType"].astype(str) == kind
    }


def samples(*shape, count=16):
    return [[torch.randn(*shape).numpy()] for _ in range(count)]


@pytest.mark.parametrize("rounding", ["gptq", "awq"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_int4_by_data_is_nearer_than_rounding(symmetric, rounding):
    module, x = Gated().eval(), torch.randn(8, 64)
    rounded = lowered(module, x)
    compress_weights(rounded, mode="int4", group_size=32, symmetric=symmetric)
    by_data = compress_weights_by_data(
        lowered(module, x),
        samples(8, 64),
        group_size=32,
        symmetric=symmetric,
        rounding=rounding,
    )
    types = {
        node.get_output_element_type(0).get_type_name()
        for node in by_data.get_ops()
        if node.get_type_name() == "Constant"
    }
    assert ("i4" if symmetric else "u4") in types
    assert error_of(by_data, module, x) < 0.9 * error_of(rounded, module, x)


@pytest.mark.parametrize("rounding", ["gptq", "awq"])
def test_weights_of_the_module_are_not_written(rounding):
    module, x = Gated().eval(), torch.randn(8, 64)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    compress_weights_by_data(lowered(module, x), samples(8, 64), group_size=32, rounding=rounding)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("rounding", ["gptq", "awq"])
def test_row_that_the_group_does_not_divide_gets_a_smaller_one(rounding):
    module, x = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 8)), torch.randn(4, 96)
    model = compress_weights_by_data(
        lowered(module, x), samples(4, 96), group_size=128, rounding=rounding
    )
    shapes = [
        tuple(node.get_output_shape(0))
        for node in model.get_ops()
        if node.get_output_element_type(0).get_type_name() == "u4"
    ]
    assert (96, 3, 32) in shapes


def test_convolutions_and_products_run_in_int8():
    module, x = convolutions().eval(), torch.randn(2, 3, 16, 16)
    model = quantize_activations(lowered(module, x), samples(2, 3, 16, 16))
    assert types_that_run(model, "Convolution") <= {"u8", "i8"}
    assert 0 < error_of(model, module, x) < 0.05


@pytest.mark.parametrize("function", [compress_weights_by_data, quantize_activations])
def test_no_samples_are_an_error(function):
    module, x = Gated().eval(), torch.randn(8, 64)
    with pytest.raises(OptionError, match="at least one example call, got none") as error:
        function(lowered(module, x), [])
    assert error.value.code == "quantize-data"


def test_weights_of_another_dtype_are_an_error():
    module, x = nn.Linear(64, 64).bfloat16(), torch.randn(8, 64).bfloat16()
    with pytest.raises(OptionError, match="must be float32, got bf16") as error:
        compress_weights_by_data(lowered(module, x), samples(8, 64))
    assert error.value.code == "quantize-data"


def test_unknown_group_is_an_error():
    with pytest.raises(OptionError, match="got 48") as error:
        compress_weights_by_data(lowered(nn.Linear(4, 4), torch.ones(1, 4)), [], group_size=48)
    assert error.value.code == "quantize-group"


def test_unknown_rounding_is_an_error():
    with pytest.raises(OptionError, match="gptq, awq, got 'nearest'") as error:
        compress_weights_by_data(lowered(nn.Linear(4, 4), torch.ones(1, 4)), [], rounding="nearest")
    assert error.value.code == "option-value"


def test_gptq_needs_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "nncf", None)
    module, x = nn.Linear(64, 64), torch.randn(8, 64)
    model = compress_weights_by_data(lowered(module, x), samples(8, 64), group_size=64)
    assert 0 < error_of(model, module, x) < 0.2


def test_missing_library_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nncf", None)
    module, x = nn.Linear(64, 64), torch.randn(8, 64)
    with pytest.raises(OptionError, match=r"nncf>=3.4") as error:
        compress_weights_by_data(lowered(module, x), samples(8, 64), rounding="awq")
    assert error.value.code == "quantize-library"
