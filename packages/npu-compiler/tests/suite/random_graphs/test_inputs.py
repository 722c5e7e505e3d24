"""Inputs of random graphs: the same each time, at the edges they are asked for, in every layout."""

from __future__ import annotations

import math

import pytest
import torch

from npu_compiler.suite.random_graphs.inputs import FLOAT_EDGES, LAYOUTS, InputSpec, make_input


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
