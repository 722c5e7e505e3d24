"""Inputs of random graphs: the same each time, at the edges they are asked for, in every layout."""

from __future__ import annotations

import math

import pytest
import torch

from npu_compiler.fuzz.graph import (
    FLOAT_EDGES,
    LAYOUTS,
    InputSpec,
    Mark,
    RandomGraph,
    Ref,
    Step,
    call,
    make_input,
    references,
    renumbered,
)


def test_inputs_are_the_same_each_time_and_lie_in_the_order_asked():
    spec = InputSpec((3, 4), order=(1, 0))
    first = make_input(spec)
    assert torch.equal(first, make_input(spec))
    assert first.stride() == (1, 3)


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"expanded"}))
def test_a_layout_keeps_the_numbers(layout):
    spec = InputSpec((3, 4))
    laid_out = make_input(InputSpec((3, 4), layout=layout))
    assert torch.equal(laid_out, make_input(spec))
    assert not laid_out.is_contiguous() or laid_out.storage_offset()


def test_an_expanded_input_repeats_one_row():
    assert make_input(InputSpec((3, 4), layout="expanded")).stride() == (0, 1)


@pytest.mark.parametrize("fill", sorted(FLOAT_EDGES))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_edges_are_among_ordinary_numbers(fill, dtype):
    tensor = make_input(InputSpec((200,), dtype, fill))
    wanted = torch.tensor(FLOAT_EDGES[fill], dtype=tensor.dtype)
    for number in wanted:
        is_there = tensor.isnan() if math.isnan(number) else tensor == number
        assert is_there.any()
    assert tensor.isfinite().sum() > 50


def test_extreme_integers_reach_the_ends_of_their_type():
    tensor = make_input(InputSpec((200,), "int16", "extreme"))
    assert (tensor.min(), tensor.max()) == (-(2**15), 2**15 - 1)


def test_indices_stay_below_their_bound_and_one_lies_outside_when_asked():
    inside = make_input(InputSpec((50,), "int64", "indices", bound=7))
    assert (inside.min(), inside.max()) == (0, 6)
    for seed in range(10):
        outside = make_input(InputSpec((50,), "int64", "outside", seed=seed, bound=7))
        assert int(((outside >= 7) | (outside < -7)).sum()) == 1


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
