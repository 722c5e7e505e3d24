"""Shrinking removes only parts that a fault does not need."""

from __future__ import annotations

from npu_compiler.fuzz import InputSpec, RandomGraph, Ref, Step
from npu_compiler.fuzz.comparison import Comparison
from npu_compiler.fuzz.modes import PLAIN, Mode
from npu_compiler.fuzz.worker import shrink, without_dead_code

GRAPH = RandomGraph(
    (InputSpec((3, 4), layout="sliced", frozen=True), InputSpec((3, 4), fill="nan")),
    (
        Step("torch.sin", (Ref(0),)),
        Step("torch.mul", (Ref(2), Ref(1))),
        Step("torch.tanh", (Ref(3),)),
        Step("F.relu", (Ref(4),)),
        Step("torch.exp", (Ref(5),)),
        Step("torch.cos", (Ref(1),)),
    ),
    (6, 7),
)
MODE = Mode(way="aot", precision="float16", properties={"SNIPPETS_MODE": "DISABLE"})
FOUND = Comparison("differs", "result 0: differs by 1, allowed 0.1")


def runner(fault):
    return lambda graph, mode: FOUND if fault(graph, mode) else Comparison()


def targets(graph):
    return [step.target for step in graph.steps]


def test_one_call_is_left_of_a_fault_of_one_call():
    has_relu = runner(lambda graph, mode: "F.relu" in targets(graph))
    graph, mode = shrink(GRAPH, MODE, FOUND, limit_s=30, run=has_relu)
    assert (targets(graph), mode) == (["F.relu"], PLAIN)
    assert [spec.shape for spec in graph.inputs] == [(2, 2)]
    assert not any(spec.frozen or spec.layout for spec in graph.inputs)


def test_two_calls_that_meet_stay():
    both = runner(lambda graph, mode: {"torch.tanh", "torch.exp"} <= {*targets(graph)})
    graph, _ = shrink(GRAPH, MODE, FOUND, limit_s=30, run=both)
    assert targets(graph) == ["torch.tanh", "torch.exp"]


def test_what_the_fault_needs_of_the_mode_stays():
    needs = runner(lambda graph, mode: mode.precision == "float16")
    _, mode = shrink(GRAPH, MODE, FOUND, limit_s=30, run=needs)
    assert mode == Mode(precision="float16")


def test_a_graph_with_an_index_out_of_range_is_made_smaller_too():
    graph = RandomGraph(
        (InputSpec((3, 4)), InputSpec((2,), "int64", "outside", bound=3)),
        (Step("torch.sin", (Ref(0),)), Step("torch.index_select", (Ref(2), 0, Ref(1)))),
        (3,),
    )

    def fault(graph, mode):
        is_valid = any(spec.shape == (3, 4) for spec in graph.inputs)
        return is_valid and "torch.index_select" in targets(graph)

    smaller, _ = shrink(graph, MODE, FOUND, limit_s=30, run=runner(fault))
    assert targets(smaller) == ["torch.index_select"]


def test_another_end_is_not_the_same_fault():
    def other(graph, mode):
        return FOUND if len(graph.steps) > 3 else Comparison("raises", "KeyError: 1")

    graph, _ = shrink(GRAPH, MODE, FOUND, limit_s=30, run=other)
    assert len(graph.steps) > 3


def test_time_is_a_bound():
    assert shrink(GRAPH, MODE, FOUND, limit_s=0, run=runner(lambda *_: True)) == (GRAPH, MODE)


def test_calls_that_write_to_what_is_returned_are_not_dead():
    graph = RandomGraph(
        (InputSpec((2,)), InputSpec((2,))),
        (
            Step("torch.sin", (Ref(1),)),
            Step("torch.cos", (Ref(0),)),
            Step("method.add_", (Ref(3), 1)),
        ),
        (3,),
    )
    assert targets(without_dead_code(graph)) == ["torch.cos", "method.add_"]
