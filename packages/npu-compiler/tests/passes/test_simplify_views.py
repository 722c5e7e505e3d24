"""Views and copies that change nothing go, those that follow each other are joined."""

from __future__ import annotations

import torch

from npu_compiler.passes.simplify_views import SimplifyViews

PASS = SimplifyViews()


def test_two_views_are_one(rewrites):
    done = rewrites(lambda x: x.view(6).view(3, 2).sin(), torch.randn(2, 3), passes=PASS)
    assert done.ops == ["aten.reshape.default", "aten.sin.default"]


def test_views_there_and_back_are_none(rewrites):
    done = rewrites(lambda x: x.view(6).view(2, 3).sin(), torch.randn(2, 3), passes=PASS)
    assert done.ops == ["aten.sin.default"]


def test_two_transpositions_are_none(rewrites):
    function = lambda x: x.transpose(1, 2).transpose(1, 2).sin()  # noqa: E731
    assert rewrites(function, torch.randn(2, 3, 4), passes=PASS).ops == ["aten.sin.default"]


def test_two_permutations_are_one(rewrites):
    function = lambda x: x.permute(2, 0, 1).transpose(0, 1).sin()  # noqa: E731
    done = rewrites(function, torch.randn(2, 3, 4), passes=PASS)
    assert done.ops == ["aten.permute.default", "aten.sin.default"]


def test_view_that_others_read_stays_for_them(rewrites):
    function = lambda x: (v := x.view(6), v.cos(), v.view(3, 2).sin())[1:]  # noqa: E731
    done = rewrites(function, torch.randn(2, 3), passes=PASS)
    assert done.ops.count("aten.view.default") == 1


def test_copy_of_a_result_stays(rewrites):
    done = rewrites(lambda x: x.clone(), torch.randn(2, 3), passes=PASS)
    assert done.count == 0


def test_copy_of_an_input_that_is_written_later_stays(rewrites):
    def function(x):
        before = x.clone()
        x.copy_(x * 2)
        return before.sin() + x

    assert "aten.clone.default" in rewrites(function, torch.randn(3), passes=PASS).ops


def test_copy_that_changes_strides_stays(rewrites):
    function = lambda x: x.t().clone(memory_format=torch.contiguous_format).sin()  # noqa: E731
    assert rewrites(function, torch.randn(2, 3), passes=PASS).count == 0
