"""Errors of a graph name the user's own line."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from npu_compiler import GraphBuilder, export
from npu_compiler.errors import GraphError, LoweringError


def here(offset=0):
    """The caller's file and line."""
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


def test_call_that_torch_refuses_is_named_by_its_line():
    x = GraphBuilder().parameter((2, 3))
    with pytest.raises(GraphError) as error:
        x.reshape(5)
    assert f"reshape ({here(-1)})" in str(error.value)


def test_call_inside_a_module_of_torch_is_named_by_the_line_that_calls_it():
    x = GraphBuilder().parameter((2, 3))
    with pytest.raises(GraphError) as error:
        nn.Linear(4, 4)(x)
    assert f"linear ({here(-1)})" in str(error.value)


def test_product_of_a_named_call_is_named_by_its_line():
    graph = GraphBuilder()
    with pytest.raises(GraphError) as error:
        graph.matmul(graph.parameter((2, 3)), graph.parameter((5, 4)))
    assert f"matmul ({here(-1)})" in str(error.value)


def test_axis_of_a_named_call_is_named_by_its_line():
    graph = GraphBuilder()
    with pytest.raises(GraphError) as error:
        graph.gather(graph.parameter((2, 3)), [0], axis=2)
    assert f"gather ({here(-1)})" in str(error.value)


def test_value_that_a_graph_has_not_is_named_by_its_line():
    x = GraphBuilder().parameter((2, 3))
    with pytest.raises(GraphError) as error:
        float(x.sum())
    assert here(-1) in str(error.value)


def test_call_that_no_program_has_is_named_by_its_line():
    graph = GraphBuilder()
    x = graph.parameter((3, 3))
    torch.linalg.qr(x * 2)
    line = here(-1)
    with pytest.raises(LoweringError) as error:
        graph.compile()
    assert f"aten.linalg_qr.default ({line})" in str(error.value)


def test_line_is_named_by_an_export_of_the_graph(tmp_path):
    graph = GraphBuilder()
    torch.linalg.qr(graph.parameter((3, 3)))
    line = here(-1)
    with pytest.raises(LoweringError) as error:
        export(graph.to_module(), (torch.ones(3, 3),), tmp_path / "graph")
    assert line in str(error.value)
