"""Products per group of rows, against eager."""

from __future__ import annotations

import pytest
import torch

import npu_compiler
from npu_compiler.lowering import find_converter

aten = torch.ops.aten


def _grouped(rows: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return aten._grouped_mm.default(rows, weight, ends)


@pytest.mark.parametrize("ends", [[2, 5, 8], [0, 0, 8], [8, 8, 8], [3, 3, 5]], ids=str)
def test_rows_go_through_their_groups_matrix(lowers, ends):
    rows, weight = torch.randn(8, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16()
    bounds = torch.tensor(ends, dtype=torch.int32)
    if ends[-1] == len(rows):
        lowers(_grouped, rows, weight, bounds)
    else:  # eager leaves the rows behind the last end unwritten
        lowers(lambda r, w, e: _grouped(r, w, e)[: ends[-1]], rows, weight, bounds)


@pytest.mark.parametrize("ends", [[2, 5, 8], [0, 0, 8], [8, 8, 8], [3, 3, 5]], ids=str)
def test_fixed_sizes_give_the_same_rows(ends, tmp_path):
    pytest.importorskip("transformers.integrations.moe")

    class Routed(torch.nn.Module):
        def forward(self, rows, weight, ends):
            return torch.ops.transformers.grouped_mm_fallback.default(rows, weight, ends)

    given = (torch.randn(8, 16), torch.randn(3, 16, 8), torch.tensor(ends))
    given[0][1, 2], given[1][2, 0, 0] = float("nan"), float("inf")
    npu_compiler.export(Routed(), given, tmp_path / "m", target="NPU")
    found = npu_compiler.load(tmp_path / "m")(*given)
    torch.testing.assert_close(found, Routed()(*given), equal_nan=True)


def test_transformers_op_has_a_converter_once_it_exists(lowers):
    pytest.importorskip("transformers.integrations.moe")
    op = torch.ops.transformers.grouped_mm_fallback.default
    assert find_converter(op) is not None
    ends = torch.tensor([2, 2, 5])
    lowers(lambda r, w, e: op(r, w, e), torch.randn(5, 4), torch.randn(3, 4, 6), ends)
