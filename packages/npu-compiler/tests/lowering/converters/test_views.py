"""Shapes against eager, static and dynamic."""

from __future__ import annotations

import pytest
import torch

aten = torch.ops.aten

VIEWS = {
    "view": lambda x: x.reshape(6, 20),
    "view_minus_one": lambda x: x.reshape(-1, 5),
    "flatten": lambda x: x.flatten(1),
    "permute": lambda x: x.permute(2, 0, 3, 1) + 0,
    "transpose": lambda x: x.transpose(1, -1) + 0,
    "transpose_reshape": lambda x: x.transpose(1, 2).reshape(2, 4, 15),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "squeeze_nothing": lambda x: x.squeeze(0),
    "expand": lambda x: x[:, :1].expand(2, 6, 4, 5) + 0,
    "expand_front": lambda x: x.expand(3, *x.shape) + 0,
    "slice": lambda x: x[:, 1:, :2],
    "slice_negative": lambda x: x[..., -2:],
    "slice_step": lambda x: x[..., ::2],
    "select": lambda x: x[:, -1],
    "select_last": lambda x: x[..., 2],
    "split": lambda x: torch.split(x, 2, dim=2),
    "split_uneven": lambda x: torch.split(x, [1, 4], dim=-1),
    "chunk": lambda x: torch.chunk(x, 2, dim=2),
    "unbind": lambda x: torch.unbind(x, 1),
    "cat": lambda x: torch.cat([x, x * 2], dim=-1),
    "stack": lambda x: torch.stack([x, -x], dim=1),
    "repeat": lambda x: x.repeat(1, 2, 1, 3),
    "repeat_more": lambda x: x[0].repeat(2, 1, 1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=1),
    "flip": lambda x: x.flip(1, 3),
    "roll": lambda x: x.roll((1, -2), (1, 2)),
    "unfold": lambda x: x.unfold(2, 2, 2) + 0,
    "narrow": lambda x: x.narrow(2, 1, 2),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, 2),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :1] * 2, 1, 1, 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_views_equal_eager(lowers, dtype):
    lowers(VIEWS, torch.arange(120).reshape(2, 3, 4, 5).to(dtype))


def test_pixel_shuffle_equals_eager(lowers):
    lowers(lambda x: aten.pixel_shuffle(x, 2), torch.randn(2, 8, 3, 3))


def test_heads_split_and_merge_with_symbolic_sizes(lowers):
    def heads(x):
        batch, length, _ = x.shape
        split = x.view(batch, length, 4, 8).transpose(1, 2)
        return split.transpose(1, 2).reshape(batch, length, 32) + 1

    lowers(heads, torch.randn(2, 5, 32), dynamic=True, run_on=(torch.randn(3, 9, 32),))


def test_two_symbolic_sizes_merge(lowers):
    lowers(
        lambda x: x.reshape(x.shape[0] * x.shape[1], 4) + 1,
        torch.randn(2, 5, 4),
        dynamic=True,
        run_on=(torch.randn(3, 7, 4),),
    )


def test_a_view_of_the_same_shape_costs_nothing(lowers):
    def same(x):
        return x.reshape(x.shape[0], -1, x.shape[2], 8) + 1

    lowered = lowers(same, torch.randn(2, 4, 5, 8), dynamic=False)
    assert "Reshape" not in {node.get_type_name() for node in lowered.lowered.model.get_ops()}


@pytest.mark.parametrize(
    "function, rows",
    [(lambda x, y: x.expand(y.shape[0], -1) + y, 1), (lambda x, y: x[: y.shape[0]] + y, 16)],
    ids=["expand", "slice"],
)
def test_symbolic_sizes_are_arguments_of_views(lowers, function, rows):
    x, y, longer = torch.randn(rows, 4), torch.randn(3, 4), torch.randn(6, 4)
    lowers(function, x, y, dynamic=True, run_on=(torch.randn(rows, 4), longer))


def test_tensors_are_broadcast_to_each_other(lowers):
    lowers(
        lambda x, y: torch.ops.aten.broadcast_tensors([x, y])[0] + y,
        torch.randn(3, 1, 5),
        torch.randn(4, 1),
    )
