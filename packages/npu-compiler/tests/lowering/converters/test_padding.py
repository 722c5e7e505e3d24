"""Padding and the gradients of slices against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten

PADS = {
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "pad_value": lambda x: F.pad(x, (1, 1), value=-3.0),
    "pad_crop": lambda x: F.pad(x, (-1, 2)),
    "pad_replicate": lambda x: F.pad(x, (1, 2, 1, 1), mode="replicate"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_padding_equals_eager(lowers, dtype):
    lowers(PADS, torch.arange(120).reshape(2, 3, 4, 5).to(dtype))


def test_reflection_equals_eager(lowers):
    lowers(lambda x: F.pad(x, (1, 2, 1, 1), mode="reflect"), torch.randn(2, 3, 4, 5))


def test_gradients_of_slices_equal_eager(lowers):
    grad = torch.randn(2, 2, 4)
    lowers(lambda g: aten.slice_backward(g, [2, 5, 4], 1, 1, 3, 1), grad)
    lowers(lambda g: aten.select_backward(g, [2, 3, 2, 4], 1, -1), grad)


@pytest.mark.parametrize(
    "size, kernel, how",
    [
        ((4, 5), (2, 2), {}),
        ((8, 9), (3, 2), {"stride": (2, 3), "padding": (1, 2), "dilation": (2, 1)}),
        ((6, 6), (2, 3), {"stride": (3, 4)}),
        ((5, 5), (5, 5), {"padding": 2}),
    ],
)
def test_folded_blocks_equal_eager(lowers, size, kernel, how):
    torch.manual_seed(0)
    image = torch.randn(2, 3, *size)
    blocks = F.unfold(image, kernel, **how)
    blocks[0, 1, 0] = float("nan")
    lowers(lambda x: (F.fold(x, size, kernel, **how), F.fold(x[1], size, kernel, **how)), blocks)
