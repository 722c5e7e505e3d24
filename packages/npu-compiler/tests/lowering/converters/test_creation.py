"""Creation, casts and copies against eager."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x + torch.full((3, 4), 2.5), id="x+full((3,4),2.5)"),
        pytest.param(lambda x: x + torch.zeros(4), id="x+zeros(4)"),
        pytest.param(lambda x: x * torch.ones(3, 1), id="x*ones(3,1)"),
        pytest.param(lambda x: torch.full_like(x, 3.0) + x, id="full_like(x,3.0)+x"),
        pytest.param(
            lambda x: torch.zeros_like(x, dtype=torch.int64) + x, id="zeros_like(x,dtype=int64)+x"
        ),
        pytest.param(lambda x: x.new_ones(4) + x, id="x.new_ones(4)+x"),
        pytest.param(lambda x: x + torch.arange(4), id="x+arange(4)"),
        pytest.param(lambda x: x + torch.arange(1, 9, 2), id="x+arange(1,9,2)"),
        pytest.param(lambda x: x + torch.arange(0.0, 2.0, 0.5), id="x+arange(0.0,2.0,0.5)"),
        pytest.param(lambda x: x + torch.linspace(0, 1, 4), id="x+linspace(0,1,4)"),
        pytest.param(lambda x: x + torch.tensor(2.0), id="x+tensor(2.0)"),
        pytest.param(lambda x: x.tril() + x.triu(1), id="x.tril()+x.triu(1)"),
        pytest.param(lambda x: torch.tril(x, -1) + torch.triu(x, -1), id="tril(x,-1)+triu(x,-1)"),
        pytest.param(lambda x: x.clone() + x.detach(), id="x.clone()+x.detach()"),
    ],
)
def test_creation_equals_eager(lowers, function):
    lowers(function, torch.randn(3, 4))


@pytest.mark.parametrize(
    "target", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool], ids=str
)
@pytest.mark.parametrize(
    "source", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str
)
def test_cast_equals_eager(lowers, source, target):
    values = torch.tensor([-2.7, -1.0, -0.5, 0.0, 0.5, 1.0, 2.7, 100.4])
    # Without bfloat16's instructions the CPU plugin's casts to it do not round to nearest.
    is_rounded = target is not torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    lowers(lambda x: x.to(target), values.to(source), tolerance=None if is_rounded else 2**-7)


def test_range_up_to_a_symbolic_size(lowers):
    lowers(
        lambda x: x + torch.arange(x.shape[0])[:, None],
        torch.randn(3, 4),
        dynamic=True,
        run_on=(torch.randn(6, 4),),
    )


def test_causal_mask_of_a_symbolic_size(lowers):
    def mask(x):
        rows = torch.arange(x.shape[0])
        return torch.where(rows[None] <= rows[:, None], x[:, None], 0.0)

    lowers(mask, torch.randn(3), dynamic=True, run_on=(torch.randn(6),))
