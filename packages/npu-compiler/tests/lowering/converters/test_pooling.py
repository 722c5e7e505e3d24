"""Padding and the gradients of slices against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from npu_compiler.graph_compiler.records import collecting
from npu_compiler.lowering.capability import HOST_IS_BETTER

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


POOLS = {
    "max_pool2d(x,2)": lambda x: F.max_pool2d(x, 2),
    "max_pool2d(x,3,stride=2,padding=1)": lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
    "max_pool2d(x,3,stride=2,ceil_mode=True)": lambda x: F.max_pool2d(
        x, 3, stride=2, ceil_mode=True
    ),
    "max_pool2d(x,2,stride=1,dilation=2)": lambda x: F.max_pool2d(x, 2, stride=1, dilation=2),
    "avg_pool2d(x,2)": lambda x: F.avg_pool2d(x, 2),
    "avg_pool2d(x,3,stride=2,padding=1)": lambda x: F.avg_pool2d(x, 3, stride=2, padding=1),
    "avg_pool2d(x,3,stride=2,padding=1,count_include_pad=False)": lambda x: F.avg_pool2d(
        x, 3, stride=2, padding=1, count_include_pad=False
    ),
    "avg_pool2d(x,3,stride=2,ceil_mode=True)": lambda x: F.avg_pool2d(
        x, 3, stride=2, ceil_mode=True
    ),
    "avg_pool2d(x,20,ceil_mode=True)": lambda x: F.avg_pool2d(x, 20, ceil_mode=True),
    "adaptive_avg_pool2d(x,1)": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_avg_pool2d(x,(3,2))": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive_max_pool2d(x,(4,3))": lambda x: F.adaptive_max_pool2d(x, (4, 3)),
    "adaptive_max_pool2d(x,(9,12))": lambda x: F.adaptive_max_pool2d(x, (9, 12)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pooling_equals_eager(lowers, dtype):
    lowers(POOLS, torch.randn(2, 3, 9, 8).to(dtype))


def test_pooling_in_three_dimensions_equals_eager(lowers):
    x = torch.randn(1, 2, 6, 7, 8)
    lowers(lambda x: (F.max_pool3d(x, 2), F.avg_pool3d(x, 3, stride=2, padding=1)), x)


@pytest.mark.parametrize("sizes", [(3, 7, 2), (4, 3, 5), 1], ids=str)
def test_adaptive_pooling_in_three_dimensions_equals_eager(lowers, sizes):
    x = torch.randn(1, 2, 6, 7, 8)
    lowers(lambda x: (F.adaptive_max_pool3d(x, sizes), F.adaptive_avg_pool3d(x, sizes)), x)


@pytest.mark.parametrize("special", [float("nan"), float("-inf"), float("inf")])
def test_uneven_adaptive_maxima_keep_nan_and_infinities(lowers, special):
    x = torch.randn(2, 3, 9, 8)
    x[0, 1, 4, 3] = x[1, 2, 8, 7] = special
    lowers(lambda x: F.adaptive_max_pool2d(x, (4, 3)), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_positions_of_maxima_are_those_of_the_first_of_equals(lowers, dtype):
    forms = [
        {"kernel_size": 2},
        {"kernel_size": 2, "ceil_mode": True},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 2, "stride": 1, "dilation": 2},
        {"kernel_size": (2, 3), "stride": (2, 1), "padding": (1, 1), "dilation": (2, 1)},
    ]
    pools = {
        str(form): lambda x, form=form: F.max_pool2d(x, **form, return_indices=True)
        for form in forms
    }
    lowers(pools, torch.randn(2, 3, 9, 12).mul(2).round().to(dtype))


@pytest.mark.parametrize("size", [1, 6])
def test_positions_in_windows_of_one_place_and_of_many_are_the_devices(lowers, size):
    x = torch.randn(2, 3, 12, 12)
    lowers(lambda x: F.max_pool2d(x, size, return_indices=True), x)


def test_positions_of_maxima_are_not_asked_of_the_device(lowers):
    """The CPU plugin would run the whole pooling as reference code."""
    found = lowers(lambda x: F.max_pool2d(x, 2, return_indices=True), torch.randn(2, 3, 8, 8))
    pools = [
        node for node in found.lowered.model.get_ordered_ops() if node.get_type_name() == "MaxPool"
    ]
    assert pools
    assert not any(len(node.output(1).get_target_inputs()) for node in pools)


def test_positions_of_maxima_are_the_hosts_where_sizes_vary(monkeypatch, on_npu):
    """The CPU plugin would run the whole pooling as reference code."""
    monkeypatch.delenv("NPU_COMPILE_TARGET", raising=False)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.MaxPool2d(2))
    with collecting() as records:
        fast = torch.compile(model, backend="npu", dynamic=True)
        for rows in (2, 3):
            x = torch.randn(rows, 3, 8, 8)
            torch.testing.assert_close(fast(x), model(x))
    eager = {node.op: node.reason for record in records for node in record.eager}
    is_left_out = eager.get("aten.max_pool2d_with_indices.default") == HOST_IS_BETTER
    assert is_left_out is not on_npu
