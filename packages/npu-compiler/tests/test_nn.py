"""quantize_model: replaced layers and their replacements."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import npu_compiler
from npu_compiler import nn as npu_nn
from npu_compiler import quantize_model
from npu_compiler.errors import OptionError
from npu_compiler.graph_compiler.records import collecting
from npu_compiler.nn import QuantizedLinear

with warnings.catch_warnings():  # torch is to drop them
    warnings.simplefilter("ignore")
    QUANTIZED = torch.quantize_per_tensor(torch.zeros(2, 2), 1.0, 0, torch.quint8)


def model():
    return nn.Sequential(nn.Linear(128, 64), nn.GELU(), nn.Sequential(nn.Linear(64, 32)))


def relative_error(result, expected) -> float:
    return float((result - expected).detach().norm() / expected.detach().norm())


@torch.no_grad()
@pytest.mark.parametrize(
    "dtype, bits, bound, symmetric", [(torch.int8, 8, 0.02, True), ("int4", 4, 0.2, False)]
)
def test_every_linear_is_replaced(dtype, bits, bound, symmetric):
    net, x = model(), torch.randn(4, 128)
    expected = net(x)
    size = sum(tensor.nbytes for tensor in net.state_dict().values())
    assert quantize_model(net, dtype, symmetric=symmetric) is net
    layers = [layer for layer in net.modules() if isinstance(layer, QuantizedLinear)]
    assert [layer.bits for layer in layers] == [bits, bits]
    assert sum(tensor.nbytes for tensor in net.state_dict().values()) < size * bits / 20
    assert relative_error(net(x), expected) < bound
    compiled = npu_compiler.explain(npu_compiler.compile(net), x)
    assert (compiled.program_count, compiled.eager) == (1, ())
    assert relative_error(net(x), expected) < bound


def test_single_linear_is_answered_by_its_replacement():
    layer = nn.Linear(64, 8)
    made = quantize_model(layer, "int8")
    assert isinstance(made, QuantizedLinear)
    assert relative_error(made(torch.ones(1, 64)), layer(torch.ones(1, 64))) < 0.05


def test_shared_layer_stays_shared():
    layer = nn.Linear(64, 64)
    net = quantize_model(nn.Sequential(layer, nn.ReLU(), layer), "int8")
    assert net[0] is net[2]


def test_skipped_layer_stays():
    net = quantize_model(model(), "int8", skip=lambda name, layer: name == "2.0")
    assert isinstance(net[0], QuantizedLinear)
    assert type(net[2][0]) is nn.Linear


def test_row_that_no_group_divides_has_eight_bits():
    net = quantize_model(nn.Sequential(nn.Linear(50, 8)), "int4")
    assert net[0].bits == 8


def test_state_dict_loads_into_a_model_quantized_alike(close):
    first, second = (quantize_model(model(), "int4") for _ in range(2))
    x = torch.randn(2, 128)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        close(second(x), first(x))


@pytest.mark.parametrize(
    "options, code, text",
    [
        ({"dtype": "int3"}, "quantize-mode", "'int3'"),
        ({"dtype": torch.float16}, "quantize-mode", "torch.float16"),
        ({"dtype": "int4", "group_size": 7}, "quantize-group", "got 7"),
    ],
)
def test_wrong_option_is_an_error(options, code, text):
    with pytest.raises(OptionError) as error:
        quantize_model(model(), **options)
    assert error.value.code == code
    assert text in str(error.value)


def relative_error_of_layers(result, expected) -> float:
    result, expected = result.detach().float(), expected.detach().float()
    return float((result - expected).norm() / expected.norm())


class Twice(npu_nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = npu_nn.Linear(torch.randn(8, 8))

    def forward(self, x):
        return self.inner(self.inner(x)) + 1


@pytest.mark.parametrize(
    "dtype, kind, bound, device",
    [
        (torch.float32, npu_nn.Linear, 1e-6, "npu"),
        (torch.float16, npu_nn.Linear, 2e-3, "cpu"),
        ("bfloat16", npu_nn.Linear, 1e-2, "npu"),
        (torch.int8, npu_nn.QuantizedLinear, 0.01, "cpu"),
        ("int4", npu_nn.QuantizedLinear, 0.12, "npu"),
    ],
    ids=str,
)
def test_linear_of_torch_in_a_precision(dtype, kind, bound, device):
    layer = nn.Linear(128, 32).to(device)
    x = torch.randn(4, 128, device=device)
    made = npu_nn.Linear.fromTorch(layer, dtype)
    assert type(made) is kind
    with torch.no_grad(), collecting() as records:
        result = made(x)
    assert [len(record.programs) for record in records] == [1]
    assert (result.dtype, result.device.type) == (torch.float32, device)
    assert relative_error_of_layers(result, layer(x)) < bound


def test_linear_trains_as_torch_does(close):
    plain = nn.Linear(8, 4)
    layer = npu_nn.Linear.fromTorch(plain, torch.float32)
    x = torch.randn(3, 8)
    with collecting() as records:
        for module in (layer, plain):
            module(x).square().sum().backward()
    assert {record.kind for record in records} == {"forward", "backward"}
    close((layer.weight.grad, layer.bias.grad), (plain.weight.grad, plain.bias.grad))
    assert list(layer.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize(
    "dtype, bits, groups, symmetric", [("int8", 8, 1, False), ("int4", 4, 4, True)]
)
def test_quantized_linear_stays_compressed_in_its_program(dtype, bits, groups, symmetric):
    layer = nn.Linear(128, 32)
    made = npu_nn.QuantizedLinear.fromTorch(layer, dtype, group_size=32, symmetric=symmetric)
    x = torch.randn(4, 128)
    with torch.no_grad(), collecting() as records:
        result = made(x)
    assert made.scale.shape == (32, groups)
    assert repr(made) == f"QuantizedLinear(128, 32, bits={bits}, groups={groups})"
    assert records[0].programs[0].constant_bytes < 0.5 * layer.weight.nbytes
    assert relative_error_of_layers(result, layer(x)) < {8: 0.01, 4: 0.12}[bits]


def test_quantized_linear_has_a_gradient_for_its_input():
    layer = nn.Linear(128, 32)
    made = npu_nn.QuantizedLinear.fromTorch(layer)
    x = torch.randn(4, 128, requires_grad=True)
    made(x).sum().backward()
    expected = torch.ones(4, 32) @ layer.weight
    assert relative_error_of_layers(x.grad, expected) < 0.01


def test_convolution_equals_torch():
    layer = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2)
    x = torch.randn(2, 4, 9, 9)
    made = npu_nn.Conv2d.fromTorch(layer)
    with torch.no_grad():
        assert relative_error_of_layers(made(x), layer(x)) < 3e-3
    assert list(made.state_dict()) == list(layer.state_dict())


def test_module_is_one_program_with_those_inside_it(close):
    module = Twice()
    x = torch.randn(2, 8)
    weight = module.inner.weight
    with torch.no_grad(), collecting() as records:
        result = module(x)
    assert len(records) == 1
    close(result, F.linear(F.linear(x, weight), weight).detach() + 1, 1e-5)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_compile_themselves(duplicate, close):
    module = Twice()
    x = torch.randn(2, 8)
    with torch.no_grad():
        expected = module(x)
        twin = duplicate(module)
        with collecting() as records:
            close(twin(x), expected)
    assert len(records) == 1


def test_converted_module_keeps_names_and_weights(close):
    plain = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout())
    converted = npu_nn.convert_to_npu_module(plain)
    assert isinstance(converted, npu_nn.NPUModuleWrapper)
    assert list(converted.state_dict()) == list(plain.state_dict())
    assert [*map(id, converted.parameters())] == [*map(id, plain.parameters())]
    assert not plain.training
    x = torch.randn(4, 8)
    with torch.no_grad(), collecting() as records:
        close(converted(x), plain(x))
    assert len(records) == 1


def test_converted_module_follows_new_weights(close):
    plain = nn.Linear(8, 8)
    converted = npu_nn.convert_to_npu_module(plain)
    x, other = torch.randn(2, 8), nn.Linear(8, 8)
    with torch.no_grad():
        converted(x)
        converted.load_state_dict(other.state_dict())
        close(converted(x), other(x))
        close(plain(x), other(x))


def test_copy_of_a_converted_module_shares_with_its_own(close):
    converted = npu_nn.convert_to_npu_module(nn.Linear(4, 4))
    twin = copy.deepcopy(converted)
    with torch.no_grad():
        twin.weight.zero_()
        assert torch.equal(twin.module.weight, twin.weight)
        assert not torch.equal(converted.weight, twin.weight)
        close(twin(torch.ones(1, 4)), twin.bias.unsqueeze(0))


@pytest.mark.parametrize(
    "make, code, text",
    [
        (lambda: npu_nn.Linear.fromTorch(nn.Linear(2, 2), "int3"), "unknown-dtype", "'int3'"),
        (
            lambda: npu_nn.QuantizedLinear(torch.ones(2, 2), torch.ones(2)),
            "quantize-weight",
            "torch.float32 (2, 2)",
        ),
        (
            lambda: npu_nn.QuantizedLinear(torch.ones(2, 2, dtype=torch.int8), torch.ones(3)),
            "quantize-weight",
            "scale (3, 1)",
        ),
        (
            lambda: npu_nn.Conv2d.fromTorch(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")),
            "nn-padding",
            "'circular'",
        ),
        (lambda: npu_nn.Linear.fromTensor(torch.ones(2, 2), QUANTIZED), "nn-weight", "Linear: "),
        (
            lambda: npu_nn.Linear.fromTensor(torch.ones(2, 2), QUANTIZED, "int8"),
            "nn-weight",
            "QuantizedLinear: ",
        ),
        (lambda: npu_nn.Linear(torch.ones(2, 2, dtype=torch.int32)), "nn-weight", "int32"),
        (lambda: npu_nn.Conv2d(QUANTIZED), "nn-weight", "torch.quint8"),
    ],
)
def test_what_does_not_fit_is_an_error(make, code, text):
    with pytest.raises(OptionError) as error:
        make()
    assert error.value.code == code
    assert text in str(error.value)
