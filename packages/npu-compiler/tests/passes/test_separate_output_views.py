"""Views that the caller sees."""

from __future__ import annotations

import torch

from npu_compiler.passes.separate_output_views import SeparateOutputViews


def test_views_of_one_result_get_calls_of_their_own(rewrites):
    def function(x):
        y = x.sin()
        turned = y.t()
        return y, turned, turned.cos()

    done = rewrites(function, torch.randn(2, 3), passes=SeparateOutputViews())
    graph = done.module.graph
    views = [node for node in graph.nodes if node.target is torch.ops.aten.t.default]
    assert len(views) == 2
    assert sum(bool(node.meta.get("npu_is_output_view")) for node in views) == 1
    y, turned, _ = done.module(torch.ones(2, 3))
    assert turned.data_ptr() == y.data_ptr()


def test_single_view_of_a_result_stays_inside(rewrites):
    done = rewrites(lambda x: x.sin().t(), torch.randn(2, 3), passes=SeparateOutputViews())
    assert done.count == 0


def test_view_of_an_input_is_taken_outside(rewrites):
    done = rewrites(lambda x: x.t(), torch.randn(2, 3), passes=SeparateOutputViews())
    (view,) = (node for node in done.module.graph.nodes if node.op == "call_function")
    assert view.meta["npu_is_output_view"]
