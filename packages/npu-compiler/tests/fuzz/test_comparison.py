"""Tolerances of results: by dtype and magnitude, and exactly at the edges."""

from __future__ import annotations

import dataclasses

import openvino.opset15 as ops
import pytest
import torch

from npu_compiler.fuzz import InputSpec, RandomGraph, Ref, Step, comparison
from npu_compiler.fuzz.comparison import allowed_differences, compare, difference, unsettled_places
from npu_compiler.fuzz.drawing import draw_graph
from npu_compiler.fuzz.graph import Mark
from npu_compiler.fuzz.modes import Mode
from npu_compiler.fuzz.vocabulary import OPS
from npu_compiler.lowering import registry

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
    """The largest result and its tolerance, for each comparison."""
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


def unsettled(graph: RandomGraph, precision: str | None = None) -> list[torch.Tensor]:
    expected = graph.compared(graph.values())
    allowed = allowed_differences(graph, expected, precision)
    return unsettled_places(graph, expected, allowed, precision)


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


def test_the_truth_of_denormals_is_not_compared():
    tiny = InputSpec((12,), fill="tiny")
    graph = RandomGraph((tiny,), (Step("torch.logical_or", (Ref(0), Ref(0))),), (1,))
    x = graph.values()[0]
    assert torch.equal(unsettled(graph)[0], (x != 0) & (x.abs() < 1e-38))


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


@pytest.mark.parametrize("precision, is_settled", [("float16", False), ("bfloat16", True)])
def test_float16_overflows_where_a_program_is_asked_for_it(precision, is_settled):
    graph = RandomGraph((InputSpec((12,), fill="large"),), (Step("torch.atan", (Ref(0),)),), (1,))
    assert not unsettled(graph, precision)[0].any()
    graph = dataclasses.replace(graph, steps=(Step("F.softsign", (Ref(0),)),))
    x, _ = graph.values()
    places = unsettled(graph, precision)[0]
    assert torch.equal(places, (x.abs() > 65504) & (not is_settled))


@pytest.mark.parametrize("fill, is_settled", [("large", False), ("nan", True)])
def test_a_norm_is_not_compared_where_its_squares_overflow(fill, is_settled):
    graph = RandomGraph(
        (InputSpec((12, 4), fill=fill), InputSpec((2,), dtype="float16")),
        (Step("F.layer_norm", (Ref(0), [4])),),
        (2,),
    )
    x, *_ = graph.values()
    assert torch.equal(unsettled(graph)[0].any(1), (x.abs() > 1e18).any(1) & (not is_settled))


def test_a_norm_whose_squares_overflow_may_be_0_before_a_call_that_returns_nan():
    steps = (Step("F.layer_norm", (Ref(0), [4])), Step("torch.log1p", (Ref(1),)))
    graph = RandomGraph((InputSpec((12, 4), fill="large", seed=3),), steps, (2,))
    x, _, result = graph.values()
    overflows = (x.abs() > 1e18).any(1, keepdim=True).expand_as(x)
    places = unsettled(graph)[0]
    assert bool((overflows & result.isnan()).any())
    assert bool(places[overflows].all())
    small = dataclasses.replace(graph, inputs=(InputSpec((12, 4), fill="nan", seed=3),))
    assert not unsettled(small)[0].any()


def test_a_pixel_next_to_an_infinity_is_not_compared():
    keywords = {"scale_factor": 2, "mode": "bilinear"}
    steps = (Step("F.interpolate", (Ref(0),), keywords),)
    for fill in ("edges", "normal"):
        graph = RandomGraph((InputSpec((2, 2, 2, 1), fill=fill),), steps, (1,))
        x, result = graph.values()
        assert bool(x.isinf().any()) == (fill == "edges")
        assert torch.equal(unsettled(graph)[0], ~result.isfinite())


@pytest.mark.parametrize("first, is_settled", [("F.relu", False), ("torch.neg", True)])
def test_the_sign_of_a_zero_is_compared_unless_it_is_chosen(first, is_settled):
    steps = (Step(first, (Ref(0),)), RECIPROCAL)
    graph = RandomGraph((InputSpec((64,), fill="edges"),), steps, (2,))
    x = graph.values()[0]
    is_zero = (x == 0) & x.signbit() if first == "F.relu" else x == 0
    assert bool(is_zero.any())
    assert torch.equal(unsettled(graph)[0] & is_zero, is_zero & (not is_settled))


def test_whether_a_quotient_by_a_rounded_zero_is_finite_is_not_compared():
    steps = (
        Step("torch.exp", (Ref(0),)),
        Step("torch.log", (Ref(1),)),
        Step("torch.sub", (Ref(2), Ref(0))),
        Step("torch.reciprocal", (Ref(3),)),
    )
    assert unsettled(RandomGraph((QUARTERS,), steps, (4,)))[0].any()
    steps = (Step("torch.sub", (Ref(0), Ref(0))), RECIPROCAL)
    assert not unsettled(RandomGraph((QUARTERS,), steps, (2,)))[0].any()


def test_float16_between_calls_may_keep_what_would_overflow():
    steps = (Step("torch.mul", (Ref(0), 30000)), Step("torch.mul", (Ref(1), 0.001)))
    graph = RandomGraph((InputSpec((2,), dtype="float16", seed=39),), steps, (1, 2))
    _, product, quotient = graph.values()
    assert bool(product.isinf().all())
    assert bool(quotient.isinf().all())
    places = unsettled(graph)
    assert not places[0].any()
    assert places[1].all()


def test_equal_numbers_are_sorted_in_any_order():
    steps = (
        Step("torch.sort", (Ref(0),), {"dim": 0}),
        *(Step("operator.getitem", (Ref(1), index)) for index in (0, 1)),
    )
    graph = RandomGraph((InputSpec((99,), fill="indices"),), steps, (2, 3))
    values, places, _ = unsettled(graph)
    expected = graph.compared(graph.values())[1]
    stable = torch.sort(graph.values()[0], stable=True)[1]
    assert not values.any()
    assert torch.equal(places, expected != stable)


def _by_hand(x: torch.Tensor) -> torch.Tensor:
    """Causal attention that adds its scores to a mask."""
    mask = torch.full((4, 4), -INF).triu(1)
    return (x @ x.transpose(-2, -1) / 2 + mask).softmax(-1) @ x


X = InputSpec((3, 4), names="n-")
# The sample excludes known errors of the device's compiler from its results.
SAMPLE = Mode(verify="first")


@pytest.mark.parametrize("number", range(24))
def test_random_graphs_equal_eager(number):
    kind, graph = draw_graph(2, number)
    if kind in ("edges", "outside"):
        graph = RELU
    found = compare(graph, dataclasses.replace(SAMPLE, device=("npu", "cpu")[number % 2]))
    assert (found.kind, found.detail) == ("equal", "")


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
WAYS = [
    Mode(),
    Mode(way="aot"),
    Mode(way="traced", sizes="dynamic"),
    Mode(way="traced", sizes="dynamic", target="NPU"),
    Mode(way="traced", sizes="buckets", buckets=(4, 8)),
    Mode(device="npu"),
]
each_way = pytest.mark.parametrize(
    "mode", WAYS, ids=lambda mode: f"{mode.way}-{mode.sizes}-{mode.device}-{mode.target}"
)


@each_way
def test_a_graph_of_right_converters_is_equal_each_way(mode):
    found = compare(RELU, mode)
    assert (found.kind, found.detail) == ("equal", "")
    assert found.lowered == found.nodes > 0
    assert found.calls == 2 if mode.sizes == "static" else 4


@each_way
@pytest.mark.usefixtures("wrong_relu")
def test_a_wrong_converter_is_found_each_way(mode):
    found = compare(RELU, mode)
    assert found.kind == "differs"
    assert found.detail.startswith("result 0: differs by")


def test_a_start_from_the_cache_loads_what_the_first_compilation_left():
    found = compare(RELU, Mode(start="cache"))
    assert (found.kind, found.programs, found.from_cache) == ("equal", 2, 1)


def test_a_write_to_an_input_is_compared(monkeypatch):
    graph = RandomGraph((X,), (Step("method.add_", (Ref(0), 1.5)),), (1,))
    assert compare(graph).kind == "equal"
    unwritten = lambda graph, config, device: lambda *g: graph.module()(*[t.clone() for t in g])  # noqa: E731
    monkeypatch.setattr(comparison, "captured_by_aot", unwritten)
    assert compare(graph).detail == "result 1: differs by 1.5, allowed 0.000145"


def test_a_graph_that_eager_refuses_is_no_finding():
    graph = RandomGraph((X,), (Step("torch.mm", (Ref(0), Ref(0))),), (1,))
    assert compare(graph).kind == "invalid"


@pytest.mark.parametrize("way", ["aot", "dynamo"])
def test_a_graph_that_torch_cannot_capture_is_no_finding(way):
    # Eager's logsigmoid of a transposed tensor is contiguous, and that of a fake tensor is not.
    steps = (Step("F.logsigmoid", (Ref(0),)), Step("method.view", (Ref(1), (12,))))
    transposed = RandomGraph((InputSpec((3, 4), order=(1, 0)),), steps, (2,))
    # Equal where the host takes the view, of the tensor that it has.
    assert compare(transposed, Mode(way=way)).kind in ("invalid", "equal")


def test_an_exception_of_the_compiler_is_a_finding(monkeypatch):
    def broken(*_):
        raise KeyError("planted")

    monkeypatch.setattr(comparison, "recorded", broken)
    assert compare(RELU) == comparison.Comparison("raises", "KeyError: 'planted'")


INDEXED = RandomGraph(
    (X, InputSpec((2,), "int64", "outside", bound=3)),
    (Step("torch.index_select", (Ref(0), 0, Ref(1))), Step("torch.tanh", (Ref(2),))),
    (3,),
)


def compiled_as(monkeypatch, outside):
    def way(graph, config, device):
        return lambda *given: [outside(*given)]

    monkeypatch.setattr(comparison, "recorded", way)


def test_an_index_out_of_range_that_raises_is_as_eager_does(monkeypatch):
    compiled_as(monkeypatch, lambda x, i: torch.tanh(torch.index_select(x, 0, i)))
    assert compare(INDEXED).kind == "equal"


def test_an_index_out_of_range_that_is_read_in_silence_is_a_finding(monkeypatch):
    compiled_as(monkeypatch, lambda x, i: torch.tanh(x[i.clamp(0, 2)]))
    assert compare(INDEXED).kind == "silent"


def test_a_buffer_that_calls_write_is_not_called_afresh_after_an_index_out_of_range():
    inputs = (*INDEXED.inputs, InputSpec((3, 4), seed=1, frozen=True))
    steps = (INDEXED.steps[0], Step("method.tanh_", (Ref(2),)))
    found = compare(RandomGraph(inputs, steps, (3, 4)), Mode(way="aot"))
    assert (found.kind, found.detail, found.calls) == ("equal", "", 2)


def test_a_call_in_which_torch_writes_to_what_it_computed_is_captured_without_writes():
    steps = (
        Step("torch.arange", (4,), {"dtype": Mark("dtype", "float32")}),
        Step("F.rms_norm", (Ref(0), [4], Ref(0)), {"eps": 0.1}),
    )
    found = compare(RandomGraph((), steps, (1,)))
    assert (found.kind, found.detail, found.calls) == ("equal", "", 2)


DYNAMIC = Mode(way="traced", sizes="dynamic")


def test_a_traced_graph_of_which_nothing_is_lowered_runs(on_npu):
    image = InputSpec((1, 2, 2, 2), fill="normal", names="b-n-")
    found = compare(RandomGraph((image,), (Step("F.conv2d", (Ref(0), Ref(0))),), (1,)), DYNAMIC)
    # Kernels with dynamic sizes do not run as programs, but for an NPU the sizes are the call's.
    assert (found.kind, found.lowered) == ("equal", 1 if on_npu else 0)


def test_a_size_that_the_capture_fixed_stays_where_its_stride_varies():
    inputs = (InputSpec((1, 2, 2), layout="interleaved", names="bn-"), InputSpec((2, 2)))
    found = compare(RandomGraph(inputs, (Step("F.linear", (Ref(0), Ref(1))),), (2,)), DYNAMIC)
    assert (found.kind, found.detail) == ("equal", "")


def test_a_graph_without_its_index_is_no_finding():
    graph = dataclasses.replace(INDEXED, steps=(Step("torch.tanh", (Ref(0),)),), outputs=(2,))
    assert compare(graph).kind == "invalid"


def test_a_call_that_reads_what_it_writes_is_no_finding():
    square = InputSpec((4, 8), fill="normal")
    steps = [Step("method.split", (Ref(0), 4), {"dim": 1})]
    steps += [Step("operator.getitem", (Ref(1), index)) for index in (0, 1)]
    steps.append(Step("method.transpose", (Ref(2), 0, 1)))
    for other, kind in ((4, "invalid"), (3, "equal"), (2, "equal")):
        written = (*steps, Step("method.add_", (Ref(2), Ref(other))))
        assert compare(RandomGraph((square,), written, (5,))).kind == kind


def test_a_graph_that_eager_refuses_without_denormals_is_no_finding():
    inputs = (InputSpec((), fill="tiny", seed=43), InputSpec((2,), "int64"))
    steps = (Step("torch.count_nonzero", (Ref(0),)), Step("torch.fmod", (Ref(1), Ref(2))))
    assert compare(RandomGraph(inputs, steps, (3,))).kind == "invalid"


def test_half_types_get_the_room_of_their_rounding():
    half = RandomGraph(
        (InputSpec((8, 8), "bfloat16", "normal"),),
        (Step("torch.mm", (Ref(0), Ref(0))), Step("method.to", (Ref(1), Mark("dtype", "float32")))),
        (2,),
    )
    assert compare(half).kind == "equal"


def test_later_calls_are_compared_on_inputs_of_other_classes():
    graph = RandomGraph(
        (InputSpec((2, 12), fill="normal"),), (Step("torch.std", (Ref(0),), {"dim": 0}),), (1,)
    )
    found = compare(graph, Mode(verify="first", nan="propagate"))
    assert (found.kind, found.calls) == ("equal", 5), found.detail
