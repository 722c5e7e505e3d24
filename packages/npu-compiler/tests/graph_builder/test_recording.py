"""Errors of a graph name the user's line."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
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


HALF = torch.float16


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda g, x: g.matmul(x, g.parameter((4, 3), HALF)), id="matmul"),
        pytest.param(lambda g, x: F.linear(x, g.constant(torch.ones(4, 3).half())), id="linear"),
        pytest.param(lambda g, x: g.linear(x, 4, 3, wt_dtype=HALF), id="weights"),
        pytest.param(lambda g, x: x @ g.parameter((3, 4), torch.int8), id="int8"),
        pytest.param(lambda g, x: g.scaled_dot_product_attention(x, x, x.to(HALF)), id="attention"),
    ],
)
def test_mixed_dtypes_are_refused_by_the_call(call):
    graph = GraphBuilder()
    x = graph.parameter((2, 3))
    with pytest.raises(GraphError, match=r"Cast them to one dtype.*\[graph-op\]"):
        call(graph, x)


def test_mixed_dtypes_that_torch_promotes_are_taken(close):
    x, y = torch.randn(2, 3), torch.randn(2, 3).half()
    graph = GraphBuilder()
    graph.parameter((2, 3)) + graph.parameter((2, 3), HALF)
    close(graph.run(x, y), x + y, 1e-3)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda g, x: g.gather(x, [0, 2]), id="gather"),
        pytest.param(lambda g, x: g.gather(x, [-1]), id="negative gather"),
        pytest.param(lambda g, x: x[torch.tensor([-3])], id="negative index"),
        pytest.param(lambda g, x: F.embedding(torch.tensor([[5]]), x), id="embedding"),
        pytest.param(lambda g, x: x[:, g.constant([1, 2]) + 1], id="computed"),
        pytest.param(lambda g, x: x.gather(1, torch.full((2, 1), 1 << 40)), id="large"),
        pytest.param(lambda g, x: x.scatter(0, torch.tensor([[2, 0, 0]]), 1.0), id="scatter"),
    ],
)
def test_constant_index_out_of_range_is_refused_by_the_call(call):
    graph = GraphBuilder()
    x = graph.parameter((2, 3))
    with pytest.raises(GraphError, match=r"in range\. \[graph-op\]"):
        call(graph, x)


def test_indices_inside_are_taken(close):
    x = torch.randn(1, 3)
    graph = GraphBuilder()
    graph.parameter((1, 3))[:, torch.tensor([2, -3])] * 2
    close(graph.run(x), x[:, [2, 0]] * 2)


def test_divisor_without_a_value_is_not_taken_for_zero():
    graph = GraphBuilder()
    quotient = graph.constant([7, -7]) // graph.parameter((2,), "int64")
    assert quotient.dtype is torch.int64


def test_values_that_a_call_changed_are_not_taken_for_the_old(close):
    graph = GraphBuilder()
    x, places = graph.parameter((2, 3)), graph.constant(torch.tensor([5]))
    places.clamp_(max=1)
    values = torch.randn(2, 3)
    close(graph.compile(x[places]).run(values), values[[1]])


def test_rehearsals_draw_no_random_numbers():
    graph = GraphBuilder()
    x = graph.parameter((2, 3))
    before = torch.get_rng_state()
    torch.rand_like(x.to(HALF)) + x
    assert torch.equal(torch.get_rng_state(), before)
