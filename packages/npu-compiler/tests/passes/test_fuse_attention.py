"""Attention written as products and a softmax."""

from __future__ import annotations

import torch

from npu_compiler.passes.fuse_attention import FuseAttention
from npu_compiler.passes.simplify_views import SimplifyViews

PASSES = [SimplifyViews(), FuseAttention()]
ATTENTION = "npu_compiler.attention.default"
Q, K, V = (torch.randn(2, 4, n, 8) for n in (5, 6, 6))
MASK = torch.zeros(2, 1, 5, 6)
MASK[..., 4:] = -1e4


def attention(q, k, v, mask=None, scale=8**-0.5):
    scores = torch.matmul(q, k.transpose(2, 3)) * scale
    if mask is not None:
        scores = scores + mask
    return torch.matmul(torch.softmax(scores, -1, dtype=torch.float32), v)


def test_plain_attention_becomes_one_call(rewrites):
    assert rewrites(attention, Q, K, V, passes=PASSES).ops == [ATTENTION]


def test_masked_attention_becomes_one_call(rewrites):
    assert rewrites(attention, Q, K, V, MASK, passes=PASSES).ops == [ATTENTION]


def test_scores_divided_by_a_root_become_one_call(rewrites):
    def function(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v

    assert rewrites(function, Q, K, V, passes=PASSES).ops == [ATTENTION]


def test_scores_without_a_scale_become_one_call(rewrites):
    function = lambda q, k, v, m: torch.softmax(q @ k.mT + m, -1) @ v  # noqa: E731
    assert ATTENTION in rewrites(function, Q, K, V, MASK, passes=PASSES).ops


def test_weights_that_are_returned_stay(rewrites):
    def function(q, k, v):
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return weights @ v, weights

    assert rewrites(function, Q, K, V, passes=PASSES).count == 0


def test_softmax_over_queries_stays(rewrites):
    function = lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -2) @ v  # noqa: E731
    assert rewrites(function, Q, K, V, passes=PASSES).count == 0


def test_training_keeps_the_parts(rewrites):
    assert rewrites(attention, Q, K, V, passes=PASSES, kind="forward").count == 0


def test_factors_that_are_images_get_rows_and_heads(rewrites):
    # timm's efficientformer_v2: the two views, to heads and to bmm's axes, are one when fused.
    def function(q, k, v):
        k = k.relu().reshape(2, 4, 8, 6)
        v = v.relu().reshape(2, 4, 8, 6).permute(0, 1, 3, 2)
        return torch.softmax(q @ k * 0.5, -1) @ v

    images = [torch.randn(2, 32, 2, 3) for _ in range(2)]
    found = rewrites(function, Q, *images, passes=PASSES)
    assert ATTENTION in found.ops


def test_images_whose_axes_are_as_many_as_heads_and_tokens_get_theirs(rewrites):
    def function(q, k, v):
        k = k.relu().reshape(2, 1, 2, 2)
        return torch.softmax(q @ k, -1) @ v

    q, v = torch.randn(2, 1, 2, 2), torch.randn(2, 1, 2, 2)
    assert ATTENTION in rewrites(function, q, torch.randn(1, 2, 2, 2), v, passes=PASSES).ops


def test_keys_that_are_the_same_for_all_heads_stay_as_they_are(rewrites):
    function = lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v  # noqa: E731
    found = rewrites(function, Q, K[:, :1], V, passes=PASSES)
    assert ATTENTION in found.ops


def test_weights_that_mix_two_heads_stay(rewrites):
    def function(q, k, v):
        weights = torch.softmax(q @ k.mT, -1)
        return (weights.reshape(2, 2, 5, 12) @ v).reshape(2, 4, 5, 4)

    found = rewrites(function, Q, K, torch.randn(2, 2, 12, 8), passes=PASSES)
    assert ATTENTION not in found.ops
