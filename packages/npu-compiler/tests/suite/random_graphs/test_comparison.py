"""Random graphs compiled: the sample equals eager, and planted faults are found."""

from __future__ import annotations

import dataclasses

import openvino.opset15 as ops
import pytest
import torch

from npu_compiler.lowering import registry
from npu_compiler.suite.random_graphs import InputSpec, RandomGraph, Ref, Step, comparison
from npu_compiler.suite.random_graphs.comparison import compare
from npu_compiler.suite.random_graphs.drawing import draw_graph
from npu_compiler.suite.random_graphs.graph import Mark
from npu_compiler.suite.random_graphs.modes import Mode
from npu_compiler.suite.random_graphs.vocabulary import OPS

X = InputSpec((3, 4), names="n-")
# The sample keeps what the device's compiler makes wrong out of its results.
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
    assert compare(transposed, Mode(way=way)).kind == "invalid"


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
    # A kernel whose sizes vary is no program's, but for an NPU they are those of the call.
    assert (found.kind, found.lowered) == ("equal", 1 if on_npu else 0)


def test_a_size_that_the_capture_fixed_stays_where_its_stride_varies():
    inputs = (InputSpec((1, 2, 2), layout="interleaved", names="bn-"), InputSpec((2, 2)))
    found = compare(RandomGraph(inputs, (Step("F.linear", (Ref(0), Ref(1))),), (2,)), DYNAMIC)
    assert (found.kind, found.detail) == ("equal", "")


def test_a_graph_without_its_index_is_no_finding():
    graph = dataclasses.replace(INDEXED, steps=(Step("torch.tanh", (Ref(0),)),), outputs=(2,))
    assert compare(graph).kind == "invalid"


def test_half_types_get_the_room_of_their_rounding():
    half = RandomGraph(
        (InputSpec((8, 8), "bfloat16", "normal"),),
        (Step("torch.mm", (Ref(0), Ref(0))), Step("method.to", (Ref(1), Mark("dtype", "float32")))),
        (2,),
    )
    assert compare(half).kind == "equal"
