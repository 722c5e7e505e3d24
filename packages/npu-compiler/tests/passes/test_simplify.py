"""Concatenations without their empty parts."""

from __future__ import annotations

import torch

from npu_compiler.passes.simplify import (
    DropEmptyParts,
    FoldConstants,
    MergeCommonSubexpressions,
    SimplifyCasts,
    SimplifyViews,
)


def test_empty_part_leaves_the_concatenation(rewrites):
    done = rewrites(
        lambda x: torch.cat([x[:, 4:], x, x[:, :0]], -1),
        torch.randn(2, 4),
        passes=DropEmptyParts(),
    )
    assert done.count == 1
    assert done.ops == ["aten.cat.default"]


def test_part_that_gives_the_dtype_stays(rewrites):
    whole, empty = torch.ones(2, 4).long(), torch.randn(2, 0)
    done = rewrites(lambda x, e: torch.cat([x, e], -1), whole, empty, passes=DropEmptyParts())
    assert done.count == 0


def test_concatenation_of_nothing_stays(rewrites):
    done = rewrites(lambda x: torch.cat([x, x], -1), torch.randn(2, 0), passes=DropEmptyParts())
    assert done.count == 0


def mask(x):
    at = torch.arange(x.shape[-1])
    return x.masked_fill(at[None, :] > at[:, None], 0.0)


def test_mask_made_of_ranges_is_folded(rewrites):
    done = rewrites(mask, torch.randn(4, 4), passes=FoldConstants(), is_exact=True)
    assert done.ops == ["aten.masked_fill.Scalar"] or done.count >= 3
    assert "aten.arange.default" not in done.ops


def test_training_graphs_keep_their_calls(rewrites):
    assert rewrites(mask, torch.randn(4, 4), passes=FoldConstants(), kind="forward").count == 0


def test_large_values_stay_calls(rewrites):
    done = rewrites(
        lambda x: x + torch.arange(64), torch.randn(64), passes=FoldConstants(max_bytes=256)
    )
    assert "aten.arange.default" in done.ops


def test_random_draws_stay_calls(rewrites):
    module = rewrites(lambda x: x + torch.rand(3) * 0, torch.randn(3), passes=FoldConstants())
    assert "aten.rand.default" in module.ops


def test_result_of_the_graph_is_new_in_each_call(rewrites):
    done = rewrites(lambda x: (x, torch.arange(3).view(3, 1)), torch.randn(2),
                    passes=FoldConstants())  # fmt: skip
    assert done.count == 0
    first, second = (done.module(torch.ones(2))[1] for _ in range(2))
    assert first.data_ptr() != second.data_ptr()


def test_op_that_is_to_run_eagerly_stays(rewrites):
    done = rewrites(
        mask,
        torch.randn(4, 4),
        passes=FoldConstants(),
        kept_ops=frozenset({"aten.arange.default"}),
    )
    assert done.count == 0


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


PASS_SIMPLIFY_CASTS = SimplifyCasts()


def test_widening_and_back_is_nothing(rewrites):
    x = torch.randn(3).bfloat16()
    done = rewrites(
        lambda x: x.float().bfloat16().sin(), x, passes=PASS_SIMPLIFY_CASTS, is_exact=True
    )
    assert done.ops == ["aten.sin.default"]


def test_two_widenings_are_one(rewrites):
    x = torch.randn(3).half()
    done = rewrites(
        lambda x: x.float().double().sin(), x, passes=PASS_SIMPLIFY_CASTS, is_exact=True
    )
    assert done.ops == ["aten._to_copy.default", "aten.sin.default"]


def test_rounding_stays(rewrites):
    done = rewrites(
        lambda x: x.half().float().sin(), torch.randn(3), passes=PASS_SIMPLIFY_CASTS, is_exact=True
    )
    assert done.count == 0


def test_truth_value_between_numbers_stays(rewrites):
    done = rewrites(
        lambda x: x.bool().float(), torch.arange(3.0), passes=PASS_SIMPLIFY_CASTS, is_exact=True
    )
    assert done.count == 0


PASS_SIMPLIFY_VIEWS = SimplifyViews()


def test_two_views_are_one(rewrites):
    done = rewrites(
        lambda x: x.view(6).view(3, 2).sin(), torch.randn(2, 3), passes=PASS_SIMPLIFY_VIEWS
    )
    assert done.ops == ["aten.reshape.default", "aten.sin.default"]


def test_views_there_and_back_are_none(rewrites):
    done = rewrites(
        lambda x: x.view(6).view(2, 3).sin(), torch.randn(2, 3), passes=PASS_SIMPLIFY_VIEWS
    )
    assert done.ops == ["aten.sin.default"]


def test_two_transpositions_are_none(rewrites):
    function = lambda x: x.transpose(1, 2).transpose(1, 2).sin()  # noqa: E731
    assert rewrites(function, torch.randn(2, 3, 4), passes=PASS_SIMPLIFY_VIEWS).ops == [
        "aten.sin.default"
    ]


def test_two_permutations_are_one(rewrites):
    function = lambda x: x.permute(2, 0, 1).transpose(0, 1).sin()  # noqa: E731
    done = rewrites(function, torch.randn(2, 3, 4), passes=PASS_SIMPLIFY_VIEWS)
    assert done.ops == ["aten.permute.default", "aten.sin.default"]


def test_view_that_others_read_stays_for_them(rewrites):
    function = lambda x: (v := x.view(6), v.cos(), v.view(3, 2).sin())[1:]  # noqa: E731
    done = rewrites(function, torch.randn(2, 3), passes=PASS_SIMPLIFY_VIEWS)
    assert done.ops.count("aten.view.default") == 1


def test_copy_of_a_result_stays(rewrites):
    done = rewrites(lambda x: x.clone(), torch.randn(2, 3), passes=PASS_SIMPLIFY_VIEWS)
    assert done.count == 0


def test_copy_of_an_input_that_is_written_later_stays(rewrites):
    def function(x):
        before = x.clone()
        x.copy_(x * 2)
        return before.sin() + x

    assert (
        "aten.clone.default" in rewrites(function, torch.randn(3), passes=PASS_SIMPLIFY_VIEWS).ops
    )


def test_copy_that_changes_strides_stays(rewrites):
    function = lambda x: x.t().clone(memory_format=torch.contiguous_format).sin()  # noqa: E731
    assert rewrites(function, torch.randn(2, 3), passes=PASS_SIMPLIFY_VIEWS).count == 0
