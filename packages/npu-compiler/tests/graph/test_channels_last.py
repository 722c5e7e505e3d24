"""Memory format of images in training graphs: results and strides are torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from npu_compiler.graph.channels_last import spread_channels_last
from npu_compiler.graph.nodes import axis_order


class Net(nn.Module):
    """Convolutions, one of them with a stride, with calls that follow or need their strides."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 1, stride=2, bias=False)
        self.third = nn.Conv2d(16, 8, 3)
        self.scale = nn.Parameter(torch.rand(8, 1, 1) + 1)

    def forward(self, images):
        images = F.max_pool2d(F.relu(self.first(images) * self.scale), 2)
        images = F.silu(self.second(images))
        wide = F.interpolate(images, scale_factor=2, mode="bilinear")
        turned = wide.flip(3) + images.mean((2, 3), keepdim=True)
        last = torch.sigmoid(self.third(turned))
        return last, last.flatten(1).square().sum(), last.permute(0, 2, 3, 1).reshape(-1, 4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_steps_are_eager_ones(dynamic):
    torch.manual_seed(0)
    expected, model = Net(), Net()
    model.load_state_dict(expected.state_dict())
    compiled = torch.compile(model, backend="npu", dynamic=dynamic)
    for batch in (4, 6) if dynamic else (4, 4):
        images = torch.randn(batch, 3, 16, 20)
        results = []
        for one in (compiled, expected):
            got = one(images)
            (got[0].sum() + got[1] + got[2].std()).backward()
            results.append(got)
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
            assert ours.stride() == theirs.stride()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
        assert ours.grad.stride() == theirs.grad.stride()


def test_random_numbers_are_eager_ones():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(0.5), nn.ReLU())
    images = torch.randn(2, 3, 8, 8)
    results = []
    for one in (torch.compile(model, backend="npu"), model):
        torch.manual_seed(1)
        results.append(one(images))
    torch.testing.assert_close(*results)


def _traced(function, *inputs):
    traced = torch.fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(*inputs)
    spread_channels_last(traced.graph)
    return traced


def _orders(graph):
    return [axis_order(node.meta["val"]) for node in graph.nodes if node.op == "call_function"]


def test_only_results_return_to_torchs_format():
    def net(images, weight):
        return torch.relu(torch.conv2d(images, weight))

    inputs = torch.randn(2, 3, 8, 8), torch.randn(8, 3, 3, 3)
    traced = _traced(net, *inputs)
    last = (0, 2, 3, 1)
    assert _orders(traced.graph) == [last, last, last, None]
    assert traced(*inputs).is_contiguous()


def test_calls_that_read_strides_keep_them():
    def net(images, weight):
        return torch.conv2d(images, weight).as_strided((4,), (5,))

    inputs = torch.randn(2, 3, 8, 8), torch.randn(8, 3, 3, 3)
    assert _orders(_traced(net, *inputs).graph) == [None, None]
