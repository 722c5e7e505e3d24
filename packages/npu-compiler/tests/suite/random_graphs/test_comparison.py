"""Random graphs compiled: the sample equals eager, and a planted fault is found."""

from __future__ import annotations

import dataclasses

import openvino.opset15 as ops
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from npu_compiler.lowering import registry
from npu_compiler.suite.random_graphs import InputSpec, RandomGraph, Ref, Step, compare
from npu_compiler.suite.random_graphs.graph import Mark
from npu_compiler.suite.random_graphs.strategies import random_graphs
from npu_compiler.suite.random_graphs.vocabulary import OPS

X = InputSpec((3, 4))


@settings(
    max_examples=30, deadline=None, database=None, derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(random_graphs())
def test_random_graphs_equal_eager(graph):
    device = ("npu", "cpu")[len(graph.steps) % 2]
    assert compare(graph, device=device).difference is None, graph.program_text()


def test_there_are_over_a_hundred_ops_to_draw_from():
    assert len({row.name for row in OPS}) == len(OPS) > 150


@pytest.fixture
def wrong_relu():
    key = torch.ops.aten.relu.default
    row = registry.find_converter(key)
    wrong = lambda ctx, **given: ops.abs(ctx.get(given["self"]))  # noqa: E731
    registry._TABLE[key] = dataclasses.replace(row, function=wrong)
    yield
    registry._TABLE[key] = row


RELU = RandomGraph((X,), (Step("F.relu", (Ref(0),)), Step("torch.tanh", (Ref(1),))), (1, 2))


def test_a_graph_of_right_converters_is_one_program():
    found = compare(RELU)
    assert (found.difference, found.programs, found.nodes, found.lowered) == (None, 1, 2, 2)


@pytest.mark.usefixtures("wrong_relu")
def test_a_wrong_converter_is_found():
    assert "result 0: differs by" in compare(RELU).difference


def test_a_write_to_an_input_is_compared(monkeypatch):
    from npu_compiler.suite.random_graphs import comparison

    graph = RandomGraph((X,), (Step("method.add_", (Ref(0), 1.5)),), (1,))
    assert compare(graph).difference is None
    unwritten = lambda module, inputs: lambda *given: module(*[t.clone() for t in given])  # noqa: E731
    monkeypatch.setattr(comparison, "npu", unwritten)
    assert compare(graph).difference == "result 1: differs by 1.5, allowed 0.000145"


def test_half_types_get_the_room_of_their_rounding():
    half = RandomGraph(
        (InputSpec((8, 8), "bfloat16", "normal"),),
        (Step("torch.mm", (Ref(0), Ref(0))), Step("method.to", (Ref(1), Mark("dtype", "float32")))),
        (2,),
    )
    assert compare(half).difference is None
