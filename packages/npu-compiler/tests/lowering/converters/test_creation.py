"""Creation, casts and copies against eager."""

from __future__ import annotations

import itertools

import pytest
import torch

from npu_compiler.lowering.capability import refusal
from npu_compiler.options import CompilerConfig

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


@pytest.mark.parametrize(
    "upper, left, unitriangular", [*itertools.product([False, True], repeat=3)]
)
def test_systems_equal_eager(lowers, upper, left, unitriangular):
    torch.manual_seed(0)
    # The other triangle, and a diagonal of ones, must not be read.
    matrix = torch.randn(2, 7, 7) / 8 + 4 * torch.eye(7)
    right = torch.randn(2, 7, 7)
    asked = {"upper": upper, "left": left, "unitriangular": unitriangular}
    lowers(lambda a, b: torch.linalg.solve_triangular(a, b, **asked), matrix, right)


def test_one_row_and_rows_without_batch_equal_eager(lowers):
    solve = torch.linalg.solve_triangular
    lowers(lambda a, b: solve(a, b, upper=False), torch.tensor([[2.0]]), torch.randn(1, 3))
    lowers(lambda a, b: solve(a, b, upper=True), torch.eye(3) * 3, torch.randn(3, 1))


@pytest.mark.parametrize("rows, is_taken", [(128, True), (129, False)])
def test_large_systems_stay_with_the_host(rows, is_taken):
    traced = torch.fx.experimental.proxy_tensor.make_fx(
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), tracing_mode="fake"
    )(torch.eye(rows), torch.ones(rows, 1))
    (call,) = (node for node in traced.graph.nodes if "solve" in node.name)
    reason = refusal(call, CompilerConfig(target="openvino"))
    assert (reason is None) is is_taken
    assert is_taken or "more than 128 rows" in reason


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
