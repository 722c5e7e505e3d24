"""The order in which bytes lie."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.graph.layout import axis_order, inverse_order, is_dense

IMAGE = torch.empty(2, 3, 4, 5)


@pytest.mark.parametrize(
    "tensor, order",
    [
        (IMAGE, None),
        (IMAGE.contiguous(memory_format=torch.channels_last), (0, 2, 3, 1)),
        (IMAGE.permute(3, 0, 2, 1), (1, 3, 2, 0)),
        (IMAGE[:, :1].transpose(0, 1), None),
        (torch.empty(4).expand(3, 4), None),
        (torch.empty(4), None),
        (torch.empty(()), None),
    ],
    ids=["plain", "channels_last", "permuted", "size_one", "expanded", "vector", "scalar"],
)
def test_order_makes_the_tensor_contiguous(tensor, order):
    assert axis_order(tensor) == order
    if order is not None:
        turned = tensor.permute(order)
        assert turned.is_contiguous()
        assert turned.permute(inverse_order(order)).stride() == tensor.stride()


@pytest.mark.parametrize(
    "tensor, dense",
    [
        (IMAGE, True),
        (IMAGE.permute(3, 0, 2, 1), True),
        (IMAGE[:, ::2], False),
        (IMAGE[:, :1].expand(2, 3, 4, 5), False),
        (torch.empty(()), True),
    ],
    ids=["plain", "permuted", "gaps", "overlap", "scalar"],
)
def test_dense_has_neither_gaps_nor_overlap(tensor, dense):
    assert is_dense(tensor) is dense
