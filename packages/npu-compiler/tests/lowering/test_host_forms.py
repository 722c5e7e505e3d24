"""Faster forms of host calls: torch's results, with torch's strides."""

from __future__ import annotations

import math

import pytest
import torch

from npu_compiler.lowering.host_forms import host_form

aten = torch.ops.aten


@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("is_strided", [False, True])
def test_maxima_and_positions_are_torchs(channels, is_strided):
    image = torch.randint(-2, 3, (2, channels, 9, 10)).float()  # with equal maxima
    image[0, 0, 3, 3], image[1, 1, 0, 0] = math.nan, -math.inf
    if is_strided:
        image = image.transpose(2, 3)
    op = aten.max_pool2d_with_indices.default
    arguments = (image, [3, 3], [2, 2], [1, 1], [1, 1], True)
    for got, expected in zip(host_form(op)(*arguments), op(*arguments), strict=True):
        assert torch.equal(got.nan_to_num(7), expected.nan_to_num(7))
        assert got.stride() == expected.stride()


def test_resizing_and_its_gradient_are_torchs():
    image, gradient = torch.randn(2, 16, 5, 6), torch.randn(2, 16, 10, 9)
    calls = {
        aten.upsample_bilinear2d.default: (image, [10, 9], False),
        aten.upsample_bilinear2d_backward.default: (gradient, [10, 9], [2, 16, 5, 6], False),
    }
    for op, arguments in calls.items():
        got, expected = host_form(op)(*arguments), op(*arguments)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


def test_other_calls_stay():
    assert host_form(aten.relu.default) is aten.relu.default
