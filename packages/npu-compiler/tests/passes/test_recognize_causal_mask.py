"""Masks whose values are known."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.passes.fold_constants import FoldConstants
from npu_compiler.passes.recognize_causal_mask import RecognizeCausalMask

PASSES = [FoldConstants(), RecognizeCausalMask()]
QKV = tuple(torch.randn(1, 2, 6, 8) for _ in range(3))


def attention(mask):
    def function(q, k, v):
        return torch.ops.npu_compiler.attention(q, k, v, mask(), False, None, False)

    return function


def flags(rewritten):
    (node,) = (n for n in rewritten.module.graph.nodes if "attention" in n.name)
    return node.args[3], node.args[4]


def test_lower_triangle_is_causal(rewrites):
    mask = lambda: torch.arange(6)[None, :] <= torch.arange(6)[:, None]  # noqa: E731
    assert flags(rewrites(attention(mask), *QKV, passes=PASSES)) == (None, True)


def test_mask_that_hides_nothing_is_none(rewrites):
    mask = lambda: torch.ones(1, 1, 6, 6, dtype=torch.bool)  # noqa: E731
    assert flags(rewrites(attention(mask), *QKV, passes=PASSES)) == (None, False)


@pytest.mark.parametrize("shift", [-1, 2])
def test_other_triangle_stays(rewrites, shift):
    mask = lambda: torch.arange(6)[None, :] <= torch.arange(6)[:, None] + shift  # noqa: E731
    assert rewrites(attention(mask), *QKV, passes=PASSES).count == 0


def test_mask_that_is_an_input_stays(rewrites):
    def function(q, k, v, mask):
        return torch.ops.npu_compiler.attention(q, k, v, mask, False, None, False)

    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    assert rewrites(function, *QKV, mask, passes=PASSES).count == 0
