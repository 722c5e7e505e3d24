"""Triangular systems against eager."""

import itertools

import pytest
import torch

from npu_compiler.lowering.capability import refusal
from npu_compiler.options import CompilerConfig


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
