"""Comparisons, logic and selection against eager."""

from __future__ import annotations

import pytest
import torch

aten = torch.ops.aten
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


def named(*names):
    return {name: getattr(torch, name) for name in names}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_comparison_equals_eager(lowers, dtype):
    a = torch.randint(0, 3, (4, 6)).to(dtype)
    lowers(named(*COMPARISONS), a, a.flip(0))


def test_comparison_with_a_number_equals_eager(lowers):
    def with_numbers(op):
        return lambda x: (op(x, 1), op(x, 1.5))

    ops = {name: with_numbers(op) for name, op in named(*COMPARISONS).items()}
    lowers(ops, torch.arange(4))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64], ids=str)
def test_logic_equals_eager(lowers, dtype):
    a = torch.tensor([0, 0, 1, 1]).to(dtype)
    b = torch.tensor([0, 1, 0, 1]).to(dtype)
    lowers(named("logical_and", "logical_or", "logical_xor"), a, b)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32], ids=str)
def test_bits_equal_eager(lowers, dtype):
    a = torch.randint(0, 2 if dtype is torch.bool else 99, (8,)).to(dtype)
    lowers(named("bitwise_and", "bitwise_or", "bitwise_xor"), a, a.flip(0))


def test_negations_equal_eager(lowers):
    lowers(lambda x: (~x, torch.logical_not(x)), torch.tensor([True, False]))
    lowers(lambda x: ~x, torch.arange(-3, 3))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64], ids=str
)
def test_where_broadcasts_and_promotes(lowers, dtype):
    mask = torch.tensor([[True], [False], [True]])
    lowers(lambda c, x: torch.where(c, x, 0), mask, torch.arange(12).reshape(3, 4).to(dtype))


def test_masked_fill_equals_eager(lowers):
    lowers(lambda x, c: x.masked_fill(c, -1.5), torch.randn(3, 4), torch.rand(3, 4) > 0.5)


def test_nan_and_infinity_are_seen(lowers):
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    lowers(lambda x: (x.isnan(), x.isinf()), x)
