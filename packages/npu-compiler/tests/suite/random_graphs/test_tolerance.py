"""How far results may lie apart: by dtype and size of numbers, and exactly at the edges."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.suite.random_graphs import InputSpec, RandomGraph, Ref, Step
from npu_compiler.suite.random_graphs.tolerance import allowed_differences, difference

NAN, INF = float("nan"), float("inf")


def told(left: list[float], right: list[float]) -> str:
    return difference([torch.tensor(left)], [torch.tensor(right)], [0.1])


def test_numbers_within_the_allowed_difference_are_equal():
    assert told([1.0, NAN, INF, -INF], [1.05, NAN, INF, -INF]) == ""


@pytest.mark.parametrize(
    "left, right", [(NAN, 1.0), (1.0, NAN), (INF, -INF), (INF, 3e38), (NAN, INF)]
)
def test_an_edge_equals_itself_alone(left, right):
    assert "where eager has" in told([0.0, left], [0.0, right])


def test_a_number_that_is_off_is_told_with_what_is_allowed():
    assert told([1.0], [1.5]) == "result 0: differs by 0.5, allowed 0.1"


def test_integers_are_compared_exactly_also_where_their_difference_overflows():
    left, right = torch.tensor([2**63 - 1]), torch.tensor([-(2**63)])
    assert difference([left], [right], [0.0])
    assert difference([left], [left.clone()], [0.0]) == ""


def test_another_dtype_or_shape_is_a_difference():
    assert "eager has" in difference([torch.ones(2)], [torch.ones(2).half()], [1.0])
    assert "eager has" in difference([torch.ones(2)], [torch.ones(1, 2)], [1.0])


def test_half_types_and_precisions_get_the_room_of_their_rounding():
    graph = RandomGraph((InputSpec((8, 8)),), (Step("torch.mm", (Ref(0), Ref(0))),), (1,))
    expected = [graph.values()[1]]
    (own,) = allowed_differences(graph, expected)
    (half,) = allowed_differences(graph, expected, "bfloat16")
    assert half > 100 * own
