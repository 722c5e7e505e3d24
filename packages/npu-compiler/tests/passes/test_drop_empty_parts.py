"""Concatenations without their empty parts."""

from __future__ import annotations

import torch

from npu_compiler.passes.drop_empty_parts import DropEmptyParts


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
