import pytest
import torch

from npu_llm.checkpoint.quantized.encoded import as_kernels_hold
from npu_llm.errors import ModelError

from .conftest import as_words

OUTPUTS, INPUTS, GROUP = 32, 64, 32
CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}


def encoded(draw, bits=4, index=None, offset=1):
    """The tensors of a weight, and its values by the formula: (q - z) * s of an input's group."""
    values = draw(0, 2**bits, OUTPUTS, INPUTS)
    zeros = draw(1, 2**bits, OUTPUTS, INPUTS // GROUP)
    scales = (draw(1, 50, OUTPUTS, INPUTS // GROUP) / 1024).half()
    groups = torch.arange(INPUTS) // GROUP if index is None else index
    expected = torch.empty(OUTPUTS, INPUTS)
    for column in range(INPUTS):
        group = int(groups[column])
        expected[:, column] = (values[:, column] - zeros[:, group]) * scales[:, group].float()
    tensors = {
        "a.qweight": as_words(values, bits).t(),
        "a.qzeros": as_words(zeros.t() - offset, bits),
        "a.scales": scales.t(),
        "a.g_idx": groups.int(),
    }
    return tensors, expected


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_values_of_the_first_version_whose_zero_points_are_less_one(folder, draw, bits):
    tensors, expected = encoded(draw, bits)
    values, integers = folder.decoded(tensors, CONFIG | {"bits": bits})
    assert torch.equal(values, expected)
    assert integers.bits == bits


def test_values_of_the_second_version_whose_zero_points_are_as_they_are(folder, draw):
    tensors, expected = encoded(draw, offset=0)
    values, _ = folder.decoded(tensors, CONFIG | {"checkpoint_format": "gptq_v2"})
    assert torch.equal(values, expected)


def test_groups_in_the_order_of_activations_are_dequantized(folder, draw):
    index = torch.randperm(INPUTS, generator=torch.Generator().manual_seed(1)) // GROUP
    tensors, expected = encoded(draw, index=index)
    values, integers = folder.decoded(tensors, CONFIG | {"desc_act": True})
    assert torch.equal(values, expected)
    assert integers is None


def test_kernels_hold_the_integers(folder, draw):
    tensors, expected = encoded(draw)
    held = as_kernels_hold(folder.decoded(tensors, CONFIG)[1])
    assert held.values.shape == (OUTPUTS, INPUTS // GROUP, GROUP)
    values = (held.values.float() - held.zero_point.float()) * held.scale
    assert torch.equal(values.flatten(1), expected)


def test_index_of_a_group_that_is_not_there_is_an_error(folder, draw):
    tensors, _ = encoded(draw)
    tensors["a.g_idx"][3] = 9
    with pytest.raises(ModelError, match=r"g_idx .* \[quantization-parts\]"):
        folder.decoded(tensors, CONFIG)


@pytest.mark.parametrize("name", ["a.qzeros", "a.scales"])
def test_weight_that_lacks_a_tensor_is_an_error(folder, draw, name):
    tensors, _ = encoded(draw)
    del tensors[name]
    with pytest.raises(ModelError, match=rf"{name} is missing.*\[quantization-parts\]"):
        folder.scheme(tensors, CONFIG)


def test_format_for_a_gpu_is_an_error(folder, draw):
    with pytest.raises(ModelError, match=r"'marlin'.*\[quantization-form\]"):
        folder.scheme(encoded(draw)[0], CONFIG | {"checkpoint_format": "marlin"})
