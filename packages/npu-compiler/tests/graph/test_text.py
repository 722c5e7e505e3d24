"""Graphs as text."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compiler.graph.text import graph_text


def test_lines_show_dtypes_sizes_strides_and_arguments():
    graph = make_fx(lambda x, y: torch.cat([x.t(), y], 1).sum(1, dtype=torch.float64),
                    tracing_mode="fake")(torch.ones(2, 3), torch.ones(3, 1)).graph  # fmt: skip
    assert graph_text(graph).splitlines() == [
        "x_1: f32[2, 3] cpu = input",
        "y_1: f32[3, 1] cpu = input",
        "t: f32[3, 2] (1, 3) cpu = aten.t.default(x_1)",
        "cat: f32[3, 3] cpu = aten.cat.default([t, y_1], 1)",
        "sum_1: f64[3] cpu = aten.sum.dim_IntList(cat, [1], dtype=torch.float64)",
        "return sum_1",
    ]


def test_text_of_symbolic_sizes_names_them():
    graph = make_fx(lambda x: x.sin(), tracing_mode="symbolic")(torch.ones(5, 3)).graph
    assert "f32[s" in graph_text(graph)
