import copy

import pytest
import torch
from torch import nn

LAYERS = {
    "1d": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 9)),
    "2d strided": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 9, 9)),
    "2d without bias": (lambda: nn.Conv2d(3, 4, 3, bias=False), (2, 3, 9, 9)),
    "2d same": (lambda: nn.Conv2d(3, 4, 3, padding="same"), (2, 3, 9, 9)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 9, 9)),
    "dilated": (lambda: nn.Conv2d(3, 4, 3, dilation=2), (2, 3, 9, 9)),
    "3d": (lambda: nn.Conv3d(2, 4, 3, groups=2), (1, 2, 5, 6, 7)),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2),
        (2, 4, 5, 5),
    ),
    "unbatched": (lambda: nn.Conv2d(3, 4, 3), (3, 9, 9)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_forward_and_backward_equal_the_cpu(name, dtype):
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    host = make().to(dtype)
    there = copy.deepcopy(host).to("npu")
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    y = x.detach().to("npu").requires_grad_()
    expected, got = host(x), there(y)
    expected.square().sum().backward()
    got.square().sum().backward()
    assert torch.equal(got.cpu(), expected)
    assert torch.equal(y.grad.cpu(), x.grad)
    for theirs, ours in zip(host.parameters(), there.parameters(), strict=True):
        assert torch.equal(ours.grad.cpu(), theirs.grad)


def test_channels_last_stays_channels_last():
    layer = nn.Conv2d(3, 8, 3).to("npu", memory_format=torch.channels_last)
    y = layer(torch.randn(2, 3, 8, 8).to("npu", memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_second_derivative():
    gradients = []
    for device in ("cpu", "npu"):
        torch.manual_seed(0)
        weight = torch.randn(4, 3, 3, 3).to(device).requires_grad_()
        x = torch.randn(1, 3, 6, 6).to(device).requires_grad_()
        (first,) = torch.autograd.grad(
            nn.functional.conv2d(x, weight).square().sum(), x, create_graph=True
        )
        (second,) = torch.autograd.grad(first.square().sum(), weight)
        gradients.append(second.cpu())
    torch.testing.assert_close(gradients[1], gradients[0])


def test_the_overrideable_pair_serves_direct_callers():
    x, weight = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3)
    options = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    got = torch.ops.aten.convolution_overrideable(x.to("npu"), weight.to("npu"), None, *options)
    expected = torch.ops.aten.convolution(x, weight, None, *options)
    assert torch.equal(got.cpu(), expected)
    ours = torch.ops.aten.convolution_backward_overrideable(
        got, x.to("npu"), weight.to("npu"), *options, [True, True, True]
    )
    theirs = torch.ops.aten.convolution_backward(
        expected, x, weight, [4], *options, [True, True, True]
    )
    for mine, reference in zip(ours, theirs, strict=True):
        assert torch.equal(mine.cpu(), reference)


def test_wrong_channels_are_an_error():
    with pytest.raises(RuntimeError, match="expected input"):
        nn.Conv2d(3, 4, 3, device="npu")(torch.zeros(1, 5, 8, 8, device="npu"))
