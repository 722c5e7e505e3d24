"""Rotary position embedding written out."""

from __future__ import annotations

import torch

from npu_compiler.passes.fuse_rotary_embedding import FuseRotaryEmbedding

PASS = FuseRotaryEmbedding()
X, ANGLES = torch.randn(2, 4, 6, 8), torch.randn(2, 6, 4)


def turned(x):
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


def rotary(x, angles):
    table = torch.cat([angles, angles], -1)
    return x * table.cos().unsqueeze(1) + turned(x) * table.sin().unsqueeze(1)


def test_embedding_becomes_one_call(rewrites):
    done = rewrites(rotary, X, ANGLES, passes=PASS)
    assert done.count == 1
    assert "npu.rotary_embedding.default" in done.ops
    assert "aten.neg.default" not in done.ops


def test_tables_whose_halves_may_differ_stay(rewrites):
    def function(x, table):
        return x * table.cos().unsqueeze(1) + turned(x) * table.sin().unsqueeze(1)

    assert rewrites(function, X, torch.randn(2, 6, 8), passes=PASS).count == 0


def test_turn_by_another_width_stays(rewrites):
    def function(x, angles):
        table = torch.cat([angles, angles], -1)
        other = torch.cat([-x[..., 2:], x[..., :2]], -1)
        return x * table.cos().unsqueeze(1) + other * table.sin().unsqueeze(1)

    assert rewrites(function, X, ANGLES, passes=PASS).count == 0


def test_product_that_is_read_elsewhere_stays(rewrites):
    def function(x, angles):
        table = torch.cat([angles, angles], -1)
        first = x * table.cos().unsqueeze(1)
        return first + turned(x) * table.sin().unsqueeze(1), first

    assert rewrites(function, X, ANGLES, passes=PASS).count == 0
