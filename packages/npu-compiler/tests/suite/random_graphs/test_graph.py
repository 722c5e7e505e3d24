"""Random graphs as data: the same text, inputs and module each time."""

from __future__ import annotations

import torch

from npu_compiler.suite.random_graphs.graph import (
    InputSpec,
    Mark,
    RandomGraph,
    Ref,
    Step,
    call,
    make_input,
    references,
)

GRAPH = RandomGraph(
    (InputSpec((3, 4), order=(1, 0)), InputSpec((4,), "float16", frozen=True)),
    (
        Step("torch.add", (Ref(0), Ref(1)), {"alpha": 2}),
        Step("operator.getitem", (Ref(2), (Mark("slice", [None, None, None]), 1))),
        Step("method.to", (Ref(3), Mark("dtype", "bfloat16"))),
        Step("torch.stack", ([Ref(4), Ref(4)],)),
    ),
    (5, 2),
)


def test_a_graph_survives_its_line():
    assert RandomGraph.from_json(GRAPH.to_json()) == GRAPH


def test_the_module_computes_the_steps():
    x, b = GRAPH.tensors()
    total = torch.add(x, b, alpha=2)
    stacked, first = GRAPH.module()(x)
    assert torch.equal(first, total)
    assert torch.equal(stacked, torch.stack([total[:, 1].bfloat16()] * 2))


def test_frozen_inputs_are_buffers():
    assert [name for name, _ in GRAPH.module().named_buffers()] == ["buffer_1"]


def test_inputs_are_the_same_each_time_and_lie_in_the_order_asked():
    first, again = make_input(GRAPH.inputs[0]), make_input(GRAPH.inputs[0])
    assert torch.equal(first, again)
    assert first.stride() == (1, 3)


def test_a_step_is_called_on_tensors():
    assert torch.equal(call(GRAPH.steps[0], GRAPH.tensors()), GRAPH.module()(GRAPH.tensors()[0])[1])


def test_references_are_found_in_lists_and_keywords():
    assert list(references([Ref(1), [Ref(4), 2], {"end": Ref(7)}])) == [1, 4, 7]


def test_the_text_shows_calls_and_results():
    lines = GRAPH.program_text().splitlines()
    assert lines[2] == "x2 = torch.add(x0, x1, alpha=2)"
    assert lines[-1] == "return x5, x2"
