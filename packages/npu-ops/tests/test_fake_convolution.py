"""Fake convolutions on npu have the strides of real ones."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

FORMATS = (torch.contiguous_format, torch.channels_last)


def strides(results):
    return [result.stride() for result in results if result is not None]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("weight_format", FORMATS, ids=str)
@pytest.mark.parametrize("x_format", FORMATS, ids=str)
def test_strides_are_those_of_the_kernel(x_format, weight_format, transposed):
    x = torch.randn(2, 4, 8, 8, device="npu").to(memory_format=x_format)
    weight = torch.randn(4, 4, 3, 3, device="npu").to(memory_format=weight_format)
    settings = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], 1)

    def both(x, weight):
        result = torch.ops.aten.convolution(x, weight, None, *settings)
        gradients = torch.ops.aten.convolution_backward(
            torch.ones_like(result), x, weight, [4], *settings, [True, True, True]
        )
        return [result, *gradients]

    real = both(x, weight)
    with FakeTensorMode() as mode:
        fake = both(mode.from_tensor(x), mode.from_tensor(weight))
    assert strides(fake) == strides(real)
    assert all(result.device.type == "npu" for result in fake)


def test_other_devices_keep_their_rule():
    x, weight = torch.randn(1, 2, 4, 4), torch.randn(2, 2, 3, 3)
    with FakeTensorMode() as mode:
        result = torch.conv2d(mode.from_tensor(x), mode.from_tensor(weight))
    assert result.device.type == "cpu"
