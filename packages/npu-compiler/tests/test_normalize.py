"""Rewrites of captured graphs: must fire, must not fire, idempotence."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.normalize import drop_empty_parts, separate_output_views


def trace(function, *inputs):
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    graph.graph.eliminate_dead_code()
    return graph


def calls(graph):
    return [node.name for node in graph.graph.nodes if node.op == "call_function"]


def test_empty_part_leaves_the_concatenation():
    graph = trace(lambda x: torch.cat([x[:, 4:], x, x[:, :0]], -1), torch.randn(2, 4))
    drop_empty_parts(graph.graph)
    assert calls(graph) == ["cat"]
    before = str(graph.graph)
    drop_empty_parts(graph.graph)
    assert str(graph.graph) == before


def test_part_that_gives_the_dtype_stays():
    graph = trace(lambda x, e: torch.cat([x, e], -1), torch.ones(2, 4).long(), torch.randn(2, 0))
    before = str(graph.graph)
    drop_empty_parts(graph.graph)
    assert str(graph.graph) == before


def test_concatenation_of_nothing_stays():
    graph = trace(lambda x: torch.cat([x, x], -1), torch.randn(2, 0))
    before = str(graph.graph)
    drop_empty_parts(graph.graph)
    assert str(graph.graph) == before


def test_views_of_one_result_get_calls_of_their_own():
    def function(x):
        y = x.sin()
        turned = y.t()
        return y, turned, turned.cos()

    graph = trace(function, torch.randn(2, 3))
    separate_output_views(graph.graph)
    views = [node for node in graph.graph.nodes if node.target is torch.ops.aten.t.default]
    assert len(views) == 2
    assert sum(bool(node.meta.get("npu_is_output_view")) for node in views) == 1
    y, turned, _ = graph(torch.ones(2, 3))
    assert turned.data_ptr() == y.data_ptr()


def test_single_view_of_a_result_stays_inside():
    graph = trace(lambda x: x.sin().t(), torch.randn(2, 3))
    before = str(graph.graph)
    separate_output_views(graph.graph)
    assert str(graph.graph) == before


def test_view_of_an_input_is_taken_outside():
    graph = trace(lambda x: x.t(), torch.randn(2, 3))
    separate_output_views(graph.graph)
    (view,) = (node for node in graph.graph.nodes if node.op == "call_function")
    assert view.meta["npu_is_output_view"]
