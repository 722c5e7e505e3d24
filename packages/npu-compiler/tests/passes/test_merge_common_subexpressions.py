"""What is computed twice from the same values is computed once."""

from __future__ import annotations

import torch

from npu_compiler.passes.merge_common_subexpressions import MergeCommonSubexpressions

PASS = MergeCommonSubexpressions()


def test_equal_calls_are_one(rewrites):
    done = rewrites(lambda x: x.sin() + x.sin() * 2, torch.randn(3), passes=PASS, is_exact=True)
    assert done.count == 1
    assert done.ops.count("aten.sin.default") == 1


def test_calls_with_other_numbers_stay(rewrites):
    function = lambda x: torch.stack([x * 1, x * 1.0, x * True, x * 2])  # noqa: E731
    assert rewrites(function, torch.arange(3), passes=PASS, is_exact=True).count == 0


def test_two_results_stay_two_tensors(rewrites):
    done = rewrites(lambda x: (x.sin(), x.sin()), torch.randn(3), passes=PASS)
    assert done.count == 0
    first, second = done.module(torch.ones(3))
    assert first.data_ptr() != second.data_ptr()


def test_random_draws_stay_two(rewrites):
    function = lambda x: torch.rand_like(x).gt(2) | torch.rand_like(x).gt(2)  # noqa: E731
    assert rewrites(function, torch.randn(3), passes=PASS).ops.count("aten.rand_like.default") == 2


def test_reads_before_and_after_a_write_stay_two(rewrites):
    def function(x):
        before = x.sin()
        x.copy_(x * 2)
        return before + x.sin()

    done = rewrites(function, torch.randn(3), passes=PASS)
    assert done.ops.count("aten.sin.default") == 2
