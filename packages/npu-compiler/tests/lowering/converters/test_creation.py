"""Creation, casts and copies against eager."""

from __future__ import annotations

import pytest
import torch

CREATED = {
    "x+full((3,4),2.5)": lambda x: x + torch.full((3, 4), 2.5),
    "x+zeros(4)": lambda x: x + torch.zeros(4),
    "x*ones(3,1)": lambda x: x * torch.ones(3, 1),
    "full_like(x,3.0)+x": lambda x: torch.full_like(x, 3.0) + x,
    "zeros_like(x,dtype=int64)+x": lambda x: torch.zeros_like(x, dtype=torch.int64) + x,
    "x.new_ones(4)+x": lambda x: x.new_ones(4) + x,
    "x+arange(4)": lambda x: x + torch.arange(4),
    "x+arange(1,9,2)": lambda x: x + torch.arange(1, 9, 2),
    "x+arange(0.0,2.0,0.5)": lambda x: x + torch.arange(0.0, 2.0, 0.5),
    "x+linspace(0,1,4)": lambda x: x + torch.linspace(0, 1, 4),
    "x+tensor(2.0)": lambda x: x + torch.tensor(2.0),
    "x.tril()+x.triu(1)": lambda x: x.tril() + x.triu(1),
    "tril(x,-1)+triu(x,-1)": lambda x: torch.tril(x, -1) + torch.triu(x, -1),
    "x.clone()+x.detach()": lambda x: x.clone() + x.detach(),
}


def test_creation_equals_eager(lowers):
    lowers(CREATED, torch.randn(3, 4))


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
