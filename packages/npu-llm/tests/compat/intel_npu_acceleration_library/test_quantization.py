"""Integer weights by that library's rules."""

import pytest
import torch

from npu_llm.compat.intel_npu_acceleration_library.dtypes import int4, int8
from npu_llm.compat.intel_npu_acceleration_library.quantization import (
    compress_to_i4,
    quantize_fit,
    quantize_i8_model,
    quantize_model,
    quantize_tensor,
)
from npu_llm.errors import OptionError


@pytest.mark.parametrize("span", [(-128, 127), (-8, 7)])
def test_integers_are_rounded_down_and_scales_are_float16(span):
    torch.manual_seed(0)
    weight = torch.randn(5, 8)
    integers, scale = quantize_tensor(weight, span)
    assert (integers.dtype, scale.dtype, scale.shape) == (torch.int8, torch.float16, (5, 1))
    expected = (weight.abs().amax(1, keepdim=True) / span[1]).half()
    assert torch.equal(scale, expected)
    assert torch.equal(integers.float(), torch.floor(weight / expected))


def test_a_row_of_zeros_gives_all_rows_one_scale():
    weight = torch.tensor([[0.0, 0.0], [1.0, -2.0], [0.5, 0.25]])
    _, scale = quantize_tensor(weight)
    assert torch.equal(scale, torch.full((3, 1), 2 / 127).half())


def test_a_scale_that_float16_cannot_hold_is_refused():
    with pytest.raises(OptionError, match="must be from -128 to 127, got") as error:
        quantize_tensor(torch.full((1, 2), 1.06e-5))
    assert error.value.code == "quantize-scale"


def test_packed_numbers_are_in_twos_complement_the_even_one_low():
    packed = compress_to_i4(torch.tensor([[1, -1, -8, 7]], dtype=torch.int8))
    assert packed.tolist() == [[0xF1, 0x78]]


@pytest.mark.parametrize("dtype", [int8, int4, torch.int8])
def test_layers_of_a_model_become_ones_over_integers(dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 4))
    expected = model[0].weight.detach().clone()
    made = quantize_model(model, dtype)
    assert type(made[0]) is not torch.nn.Linear
    torch.testing.assert_close(made(torch.eye(64)) - made[0].bias, expected.T, atol=0.02, rtol=0)


def test_other_dtypes_and_algorithms_are_refused():
    model = torch.nn.Linear(4, 4)
    with pytest.raises(OptionError, match=r"int8 or int4, got torch\.float16") as error:
        quantize_model(model, torch.float16)
    assert error.value.code == "unknown-dtype"
    with pytest.raises(OptionError, match="`algorithm` must be RTN, got 'GPTQ'") as error:
        quantize_fit(model, "int8", "GPTQ")
    assert error.value.code == "quantize-algorithm"
    assert type(quantize_i8_model(model)) is not torch.nn.Linear


@pytest.mark.parametrize(
    "weight, bounds",
    [
        ([[1.0]], (-8, 7)),
        (torch.tensor([[float("nan"), 1.0]]), (-8, 7)),
        (torch.ones(2, 2), (0, 0)),
    ],
)
def test_other_weights_and_ranges_are_refused(weight, bounds):
    with pytest.raises(OptionError, match="quantize_tensor: ") as error:
        quantize_tensor(weight, bounds)
    assert error.value.code == "quantize-weight"
