"""Pooling against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: F.max_pool2d(x, 2), id="max_pool2d(x,2)"),
        pytest.param(
            lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
            id="max_pool2d(x,3,stride=2,padding=1)",
        ),
        pytest.param(
            lambda x: F.max_pool2d(x, 3, stride=2, ceil_mode=True),
            id="max_pool2d(x,3,stride=2,ceil_mode=True)",
        ),
        pytest.param(
            lambda x: F.max_pool2d(x, 2, stride=1, dilation=2),
            id="max_pool2d(x,2,stride=1,dilation=2)",
        ),
        pytest.param(lambda x: F.avg_pool2d(x, 2), id="avg_pool2d(x,2)"),
        pytest.param(
            lambda x: F.avg_pool2d(x, 3, stride=2, padding=1),
            id="avg_pool2d(x,3,stride=2,padding=1)",
        ),
        pytest.param(
            lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False),
            id="avg_pool2d(x,3,stride=2,padding=1,count_include_pad=False)",
        ),
        pytest.param(
            lambda x: F.avg_pool2d(x, 3, stride=2, ceil_mode=True),
            id="avg_pool2d(x,3,stride=2,ceil_mode=True)",
        ),
        pytest.param(
            lambda x: F.avg_pool2d(x, 20, ceil_mode=True),
            id="avg_pool2d(x,20,ceil_mode=True)",
        ),
        pytest.param(lambda x: F.adaptive_avg_pool2d(x, 1), id="adaptive_avg_pool2d(x,1)"),
        pytest.param(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), id="adaptive_avg_pool2d(x,(3,2))"),
    ],
)
def test_pooling_equals_eager(lowers, function, dtype):
    lowers(function, torch.randn(2, 3, 9, 8).to(dtype))


def test_pooling_in_three_dimensions_equals_eager(lowers):
    x = torch.randn(1, 2, 6, 7, 8)
    lowers(lambda x: (F.max_pool3d(x, 2), F.avg_pool3d(x, 3, stride=2, padding=1)), x)
