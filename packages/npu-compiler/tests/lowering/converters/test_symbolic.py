"""Arithmetic on sizes against eager."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x * x.shape[0], id="x*x.shape[0]"),
        pytest.param(lambda x: x + (x.shape[0] + x.shape[1]), id="x+(x.shape[0]+x.shape[1])"),
        pytest.param(lambda x: x - x.shape[0] // 2, id="x-x.shape[0]//2"),
        pytest.param(lambda x: x / (x.shape[0] * 2 - 1), id="x/(x.shape[0]*2-1)"),
        pytest.param(lambda x: x * (x.shape[0] % 3), id="x*(x.shape[0]%3)"),
        pytest.param(
            lambda x: x.reshape(x.shape[1], x.shape[0]) * 2, id="x.reshape(x.shape[1],x.shape[0])*2"
        ),
        pytest.param(lambda x: x[: x.shape[0] - 1] * 2, id="x[:x.shape[0]-1]*2"),
        pytest.param(lambda x: x * x.numel(), id="x*x.numel()"),
    ],
)
def test_sizes_as_numbers_equal_eager(lowers, function):
    lowers(function, torch.randn(4, 6), dynamic=True, run_on=(torch.randn(7, 5),))
