"""Parallel products."""

from __future__ import annotations

import torch

from npu_compiler.passes.batch_matmuls import BatchMatmuls

PASS = BatchMatmuls()
X = torch.randn(3, 4)
WEIGHTS = tuple(torch.randn(4, 4) for _ in range(3))


def branches(x, a, b, c):
    return (x @ a).relu() + ((x * 2) @ b).sin() + (x.cos() @ c)


def test_parallel_products_are_one(rewrites):
    done = rewrites(branches, X, *WEIGHTS, passes=PASS, weights=(1, 2, 3))
    assert done.ops.count("aten.bmm.default") == 1
    assert "aten.mm.default" not in done.ops


def test_products_that_wait_for_each_other_stay(rewrites):
    function = lambda x, a, b, c: x @ a @ b @ c  # noqa: E731
    assert rewrites(function, X, *WEIGHTS, passes=PASS, weights=(1, 2, 3)).count == 0


def test_two_products_stay(rewrites):
    function = lambda x, a, b: (x @ a) + (x @ b)  # noqa: E731
    assert rewrites(function, X, *WEIGHTS[:2], passes=PASS, weights=(1, 2)).count == 0


def test_weights_that_are_inputs_stay(rewrites):
    assert rewrites(branches, X, *WEIGHTS, passes=PASS).count == 0


def test_large_factors_stay(rewrites):
    done = rewrites(branches, X, *WEIGHTS, passes=BatchMatmuls(max_elements=11), weights=(1, 2, 3))
    assert done.count == 0


def test_products_of_other_shapes_stay(rewrites):
    function = lambda x, a, b, c: (x @ a, x @ b, x @ c)  # noqa: E731
    weights = torch.randn(4, 4), torch.randn(4, 5), torch.randn(4, 6)
    assert rewrites(function, X, *weights, passes=PASS, weights=(1, 2, 3)).count == 0
