"""How far results may lie apart: by dtype and size of numbers, and exactly at the edges."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.suite.random_graphs import InputSpec, RandomGraph, Ref, Step
from npu_compiler.suite.random_graphs.tolerance import (
    allowed_differences,
    difference,
    unsettled_places,
)

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


def bounds(graph: RandomGraph, precision: str | None = None) -> tuple[list[float], list[float]]:
    """The largest result and what it may differ by, of each that is compared."""
    expected = graph.compared(graph.values())
    largest = [float(tensor.double().abs().max()) for tensor in expected]
    return largest, allowed_differences(graph, expected, precision)


QUARTERS = InputSpec((2,), seed=39)  # 3 and -7.5
RECIPROCAL = Step("torch.reciprocal", (Ref(1),))


def test_what_was_rounded_near_zero_gets_room_where_it_divides():
    (near, whole) = (Step("F.softplus", (Ref(0),)), Step("torch.mul", (Ref(0), 2)))
    (largest, _), (allowed, _) = bounds(RandomGraph((QUARTERS,), (near, RECIPROCAL), (2,)))
    assert 1e-4 * largest < allowed < 1e-2 * largest
    (_, _), (allowed, _) = bounds(RandomGraph((QUARTERS,), (whole, RECIPROCAL), (2,)))
    assert allowed < 1e-3


def test_a_quotient_by_a_sum_that_cancels_gets_the_room_of_its_precision():
    inputs = tuple(InputSpec((1, 8, 8, 8), fill="normal") for _ in range(3))
    steps = (Step("torch.matmul", (Ref(1), Ref(2))), Step("torch.div", (Ref(0), Ref(3))))
    graph = RandomGraph(inputs, steps, (4,))
    own, half = bounds(graph)[1][0], bounds(graph, "bfloat16")[1][0]
    assert half > 100 * own


def test_comparisons_of_exact_numbers_are_not_disturbed():
    steps = (
        Step("torch.ge", (Ref(0), 3)),
        Step("torch.where", (Ref(1), Ref(0), 100.0)),
    )
    for precision in (None, "bfloat16"):
        assert bounds(RandomGraph((QUARTERS,), steps, (2,)), precision)[1][0] <= 3.0


def test_an_input_that_is_written_gets_the_room_of_a_result():
    steps = (
        Step("F.softplus", (Ref(0),)),
        Step("torch.reciprocal", (Ref(2),)),
        Step("method.copy_", (Ref(1), Ref(3))),
    )
    _, allowed = bounds(RandomGraph((QUARTERS, InputSpec((2,))), steps, (3,)))
    assert allowed[2] == pytest.approx(allowed[0], rel=1e-3)
    assert allowed[2] > 10 * allowed[1]


def unsettled(graph: RandomGraph) -> list[torch.Tensor]:
    expected = graph.compared(graph.values())
    return unsettled_places(graph, expected, allowed_differences(graph, expected))


def test_quotients_by_denormals_are_not_compared_and_others_are():
    tiny = InputSpec((12,), fill="tiny")
    graph = RandomGraph((tiny,), (Step("torch.div", (Ref(0), Ref(0))),), (1,))
    x, quotient = graph.values()
    (places, written) = unsettled(graph)
    assert places.any()
    assert torch.equal(places, (x != 0) & (x.abs() < 1e-38))
    assert not written.any()
    device = torch.where(places, INF, quotient)
    expected = [quotient]
    assert difference([device], expected, [1e-3], [places]) == ""
    device[~places] += 1
    assert "differs by 1" in difference([device], expected, [1e-3], [places])


def test_rows_that_attention_of_numbers_not_finite_makes_by_its_kernel_are_not_compared():
    steps = (Step("F.scaled_dot_product_attention", (Ref(0),) * 3, {"is_causal": True}),)
    for seed in range(3):
        graph = RandomGraph((InputSpec((1, 1, 4, 4), fill="nan", seed=seed),), steps, (1,))
        x, result = graph.values()
        # On some machines torch's kernels agree.
        assert torch.equal(unsettled(graph)[0], result.isnan() != _by_hand(x).isnan())
    finite = InputSpec((1, 1, 4, 4), fill="normal")
    assert not any(bool(p.any()) for p in unsettled(RandomGraph((finite,), steps, (1,))))


def test_gelu_of_an_infinity_is_not_compared():
    step = Step("F.gelu", (Ref(0),), {"approximate": "none"})
    for seed in range(8):
        graph = RandomGraph((InputSpec((12,), fill="nan", seed=seed),), (step,), (1,))
        assert torch.equal(unsettled(graph)[0], graph.values()[0].isinf())


def test_a_weight_that_is_not_finite_is_not_compared_where_it_may_meet_padding():
    image = InputSpec((1, 1, 4, 4), fill="normal")
    inside = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    inside[..., 1:-1, 1:-1] = True
    step = Step("F.conv2d", (Ref(0), Ref(1)), {"padding": 1})
    for fill in ("nan", "normal"):
        kernel = InputSpec((1, 1, 3, 3), fill=fill, seed=3)
        graph = RandomGraph((image, kernel), (step,), (2,))
        is_finite = bool(graph.values()[1].isfinite().all())
        assert is_finite == (fill == "normal")
        assert torch.equal(unsettled(graph)[0], ~inside & (not is_finite))


def _by_hand(x: torch.Tensor) -> torch.Tensor:
    """Causal attention whose scores are added to a mask."""
    mask = torch.full((4, 4), -INF).triu(1)
    return (x @ x.transpose(-2, -1) / 2 + mask).softmax(-1) @ x
