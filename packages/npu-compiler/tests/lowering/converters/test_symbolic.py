"""Arithmetic on sizes against eager."""

from __future__ import annotations

import torch

SIZES = {
    "x*x.shape[0]": lambda x: x * x.shape[0],
    "x+(x.shape[0]+x.shape[1])": lambda x: x + (x.shape[0] + x.shape[1]),
    "x-x.shape[0]//2": lambda x: x - x.shape[0] // 2,
    "x/(x.shape[0]*2-1)": lambda x: x / (x.shape[0] * 2 - 1),
    "x*(x.shape[0]%3)": lambda x: x * (x.shape[0] % 3),
    "x.reshape(x.shape[1],x.shape[0])*2": lambda x: x.reshape(x.shape[1], x.shape[0]) * 2,
    "x[:x.shape[0]-1]*2": lambda x: x[: x.shape[0] - 1] * 2,
    "x*x.numel()": lambda x: x * x.numel(),
}


def test_sizes_as_numbers_equal_eager(lowers):
    lowers(SIZES, torch.randn(4, 6), dynamic=True, run_on=(torch.randn(7, 5),))
