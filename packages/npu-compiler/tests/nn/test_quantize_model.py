"""quantize_model: which layers are replaced, and by what."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import npu_compiler
from npu_compiler import quantize_model
from npu_compiler.errors import OptionError
from npu_compiler.nn import QuantizedLinear


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
