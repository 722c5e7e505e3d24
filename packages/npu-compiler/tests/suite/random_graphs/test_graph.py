"""Random graphs as data: the same text, inputs and module each time."""

from __future__ import annotations

import torch

from npu_compiler.suite.random_graphs.graph import (
    Mark,
    RandomGraph,
    Ref,
    Step,
    call,
    references,
    renumbered,
)
from npu_compiler.suite.random_graphs.inputs import InputSpec

GRAPH = RandomGraph(
    (InputSpec((3, 4), order=(1, 0), names="b-"), InputSpec((4,), "float16", frozen=True)),
    (
        Step("torch.add", (Ref(0), Ref(1)), {"alpha": 2}),
        Step("operator.getitem", (Ref(2), (Mark("slice", [None, None, None]), 1))),
        Step("method.to", (Ref(3), Mark("dtype", "bfloat16"))),
        Step("torch.stack", ([Ref(4), Ref(4)],)),
        Step("method.view", (Ref(5), Mark("size", [0, 0]), 2)),
    ),
    (6, 2),
)


def test_a_graph_survives_its_line():
    assert RandomGraph.from_json(GRAPH.to_json()) == GRAPH


def test_the_module_computes_the_steps():
    x, b = GRAPH.tensors()
    total = torch.add(x, b, alpha=2)
    viewed, first = GRAPH.module()(x)
    assert torch.equal(first, total)
    assert torch.equal(viewed, torch.stack([total[:, 1].bfloat16()] * 2).view(3, 2))


def test_values_are_those_of_the_module():
    values = GRAPH.values()
    results = GRAPH.module()(*GRAPH.given())
    assert all(torch.equal(values[i], r) for i, r in zip(GRAPH.outputs, results, strict=True))


def test_wide_values_round_nowhere():
    wide = GRAPH.values(wide=True)
    assert {value.dtype for value in wide} == {torch.float64}


def test_frozen_inputs_are_buffers():
    assert [name for name, _ in GRAPH.module().named_buffers()] == ["buffer_1"]
    assert len(GRAPH.given()) == 1


def test_named_axes_take_other_sizes_and_sizes_in_calls_follow():
    other = GRAPH.resized({"b": 5})
    assert [spec.shape for spec in other.inputs] == [(5, 4), (4,)]
    assert other.values()[6].shape == (5, 2)


def test_a_step_is_called_on_tensors():
    assert torch.equal(call(GRAPH.steps[0], GRAPH.tensors()), GRAPH.module()(GRAPH.tensors()[0])[1])


def test_references_are_found_in_lists_keywords_and_sizes():
    listed = [Ref(1), [Ref(4), 2], {"end": Ref(7)}, Mark("size", [9, 0])]
    assert list(references(listed)) == [1, 4, 7, 9]


def test_references_take_other_numbers():
    arguments = (Ref(1), [Mark("size", [2, 0])])
    assert renumbered(arguments, {1: 5, 2: 6}) == (Ref(5), [Mark("size", [6, 0])])


def test_a_write_is_known_by_its_name():
    assert not GRAPH.is_writing
    assert RandomGraph(GRAPH.inputs, (Step("method.add_", (Ref(0), 1)),), (2,)).is_writing
