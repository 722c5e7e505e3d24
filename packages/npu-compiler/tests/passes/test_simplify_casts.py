"""Casts that change nothing go."""

from __future__ import annotations

import torch

from npu_compiler.passes.simplify_casts import SimplifyCasts

PASS = SimplifyCasts()


def test_widening_and_back_is_nothing(rewrites):
    x = torch.randn(3).bfloat16()
    done = rewrites(lambda x: x.float().bfloat16().sin(), x, passes=PASS, is_exact=True)
    assert done.ops == ["aten.sin.default"]


def test_two_widenings_are_one(rewrites):
    x = torch.randn(3).half()
    done = rewrites(lambda x: x.float().double().sin(), x, passes=PASS, is_exact=True)
    assert done.ops == ["aten._to_copy.default", "aten.sin.default"]


def test_rounding_stays(rewrites):
    done = rewrites(lambda x: x.half().float().sin(), torch.randn(3), passes=PASS, is_exact=True)
    assert done.count == 0


def test_truth_value_between_numbers_stays(rewrites):
    done = rewrites(lambda x: x.bool().float(), torch.arange(3.0), passes=PASS, is_exact=True)
    assert done.count == 0
