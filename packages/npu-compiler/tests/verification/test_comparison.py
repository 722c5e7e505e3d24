"""Results that count as equal to torch's, and others."""

from __future__ import annotations

import math

import pytest
import torch

from npu_compiler.verification.comparison import compare

NAN, INF = float("nan"), float("inf")


def _noisy(expected: torch.Tensor, size: float) -> list[list[torch.Tensor]]:
    return [[expected + size * sign] for sign in (1.0, -1.0, 0.5)]


def test_rounding_in_the_last_places_is_right() -> None:
    expected = torch.randn(5, 64)
    found = expected * (1 + 3e-7 * torch.randn(5, 64))
    assert compare([found], [expected], precision="float32") is None


@pytest.mark.parametrize("place", [0, 31, 319])
def test_one_wrong_element_among_many_is_found(place: int) -> None:
    expected = torch.randn(5, 64)
    found = expected.clone()
    found.view(-1)[place] += 0.01
    difference = compare([found], [expected], precision="float32")
    assert difference is not None
    assert difference.count == 1
    assert difference.index == (place // 64, place % 64)


def test_a_small_row_is_not_hidden_by_a_large_one() -> None:
    expected = torch.stack([torch.full((8,), 1e6), torch.full((8,), 1e-3)])
    found = expected.clone()
    found[1, 2] = 2e-3
    difference = compare([found], [expected], precision="float32")
    assert difference is not None
    assert difference.index == (1, 2)


@pytest.mark.parametrize(
    "found, expected",
    [(0.0, NAN), (NAN, 0.0), (1.0, INF), (INF, 1.0), (-INF, INF), (NAN, INF)],
)
def test_nan_and_infinity_in_the_wrong_place_differ(found: float, expected: float) -> None:
    values = torch.tensor([1.0, expected, 3.0])
    difference = compare([torch.tensor([1.0, found, 3.0])], [values], precision="float32")
    assert difference is not None
    assert difference.size == INF
    assert difference.index == (1,)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_nan_and_infinity_in_their_place_are_right(value: float) -> None:
    values = torch.tensor([1.0, value, 3.0])
    assert compare([values.clone()], [values], precision="float32") is None


def test_forms_that_drop_nan_are_excused_where_torch_has_nan_and_nowhere_else() -> None:
    expected = torch.tensor([NAN, 1.0])
    assert (
        compare([torch.tensor([0.0, 1.0])], [expected], precision="float32", drops_nan=True) is None
    )
    difference = compare(
        [torch.tensor([0.0, 2.0])], [expected], precision="float32", drops_nan=True
    )
    assert difference is not None
    assert difference.count == 1


def test_what_rounding_alone_does_to_torchs_own_result_is_right() -> None:
    expected = torch.full((16,), 1e-3)  # for example, a difference of large numbers
    found = expected + 2e-5
    assert compare([found], [expected], precision="float32") is not None
    assert (
        compare([found], [expected], precision="float32", noisy=lambda: _noisy(expected, 1e-5))
        is None
    )


def test_more_than_rounding_does_differs_though_rounding_is_large() -> None:
    expected = torch.full((16,), 1e-3)
    found = expected.clone()
    found[3] += 1e-2
    difference = compare(
        [found], [expected], precision="float32", noisy=lambda: _noisy(expected, 1e-5)
    )
    assert difference is not None
    assert difference.count == 1


def test_the_second_stage_is_not_asked_without_need() -> None:
    expected = torch.randn(8)

    def noisy() -> list[list[torch.Tensor]]:
        raise AssertionError("asked")

    assert compare([expected.clone()], [expected], precision="float32", noisy=noisy) is None


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precisions_are_held_to_their_own_rounding(precision: str) -> None:
    expected = torch.randn(4, 32)
    near = expected.to(getattr(torch, precision)).float()
    assert compare([near], [expected], precision=precision) is None
    assert compare([near], [expected], precision="float32") is not None
    assert compare([expected * 1.2], [expected], precision=precision) is not None


def test_whole_numbers_and_truth_values_must_be_equal() -> None:
    expected = torch.arange(6)
    assert compare([expected.clone()], [expected], precision="float32") is None
    difference = compare([expected + (expected == 4)], [expected], precision="float32")
    assert difference is not None
    assert (difference.found, difference.expected) == (5, 4)


def test_positions_that_rounding_turns_over_are_right() -> None:
    expected = torch.tensor([3, 1, 4, 1])
    tied = torch.tensor([3, 2, 4, 1])
    assert compare([tied], [expected], precision="float32", noisy=lambda: [[tied]]) is None
    other = torch.tensor([0, 0, 0, 0])
    assert compare([other], [expected], precision="float32", noisy=lambda: [[tied]]) is not None


@pytest.mark.parametrize(
    "found", [torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(2, 1), None]
)
def test_another_shape_or_dtype_differs(found: torch.Tensor | None) -> None:
    difference = compare([found], [torch.zeros(2)], precision="float32")
    assert difference is not None
    assert difference.size == INF


def test_empty_and_zero_dim_results_are_compared() -> None:
    assert compare([torch.zeros(0, 3)], [torch.zeros(0, 3)], precision="float32") is None
    assert compare([torch.tensor(1.0)], [torch.tensor(1.0)], precision="float32") is None
    assert compare([torch.tensor(1.1)], [torch.tensor(1.0)], precision="float32") is not None


def test_complex_results_are_compared() -> None:
    expected = torch.randn(3, dtype=torch.complex64)
    assert compare([expected.clone()], [expected], precision="float32") is None
    assert compare([expected.conj()], [expected], precision="float32") is not None


def test_a_difference_says_which_where_and_how_far() -> None:
    difference = compare(
        [torch.zeros(1), torch.tensor([1.0, 2.5])],
        [torch.zeros(1), torch.tensor([1.0, 2.0])],
        precision="float32",
    )
    assert str(difference) == "result 1 is off by 0.5, 1 of 2 elements: 2.5 instead of 2.0 at [1]"


def test_infinity_is_no_rounding_error_of_a_large_number():
    expected = torch.tensor([8.6e37, 1.1e38, 1.0])
    noisy = lambda: [[expected * (1 + 1e-7)], [expected * (1 - 1e-7)]]  # noqa: E731
    found = compare([torch.full((3,), math.inf)], [expected], precision="float32", noisy=noisy)
    assert found is not None
    assert compare([expected * (1 + 1e-7)], [expected], precision="float32", noisy=noisy) is None


@pytest.mark.parametrize("shape", [(1, 128, 1, 1), (1, 128)])
def test_a_line_of_one_element_is_compared_by_the_spread_of_its_neighbours(shape):
    right = torch.ones(shape)
    found, noisy = right.clone(), right + 1e-4
    found[0, 3], noisy[0, 3] = 1 + 5e-5, 1.0  # a sample may leave an element as it was
    assert compare([found], [right], precision="float32", noisy=lambda: [[noisy]]) is None
    found[0, 3] = 1.01
    assert compare([found], [right], precision="float32", noisy=lambda: [[noisy]]) is not None
