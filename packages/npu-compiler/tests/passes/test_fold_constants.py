"""What depends on no input is computed once."""

from __future__ import annotations

import torch

from npu_compiler.passes.fold_constants import FoldConstants


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
