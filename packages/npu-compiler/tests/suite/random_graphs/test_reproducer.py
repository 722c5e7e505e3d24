"""Reproducers: lines that run, on the inputs of the graph, in its mode."""

from __future__ import annotations

import warnings

import torch

from npu_compiler.suite.random_graphs import InputSpec, RandomGraph, Ref, Step
from npu_compiler.suite.random_graphs.drawing import draw_graph
from npu_compiler.suite.random_graphs.graph import Mark
from npu_compiler.suite.random_graphs.inputs import LAYOUTS
from npu_compiler.suite.random_graphs.modes import PLAIN, Mode
from npu_compiler.suite.random_graphs.reproducer import body_text, reproducer


def run(graph: RandomGraph, mode: Mode = PLAIN) -> dict[str, object]:
    """The names that a reproducer leaves, with torch.compile and printing taken out."""
    text = reproducer(graph, mode).split("with torch.no_grad()")[0]
    names: dict[str, object] = {}
    exec(text, names)  # the text is what is tested
    return names


def test_the_text_computes_what_the_graph_does():
    for number in range(60):
        kind, graph = draw_graph(4, number)
        if kind == "outside" or graph.is_writing:
            continue
        names = run(graph)
        inputs = [names[f"x{index}"] for index in range(len(graph.inputs))]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as std's, of one element
            values = graph.values()
            results = names["f"](*inputs)
        for index, result in zip(graph.outputs, results, strict=True):
            torch.testing.assert_close(result, values[index], equal_nan=True, msg=str(number))


def test_layouts_are_kept():
    for layout in LAYOUTS:
        spec = InputSpec((3, 4), layout=layout)
        graph = RandomGraph((spec,), (Step("torch.sin", (Ref(0),)),), (1,))
        assert run(graph)["x0"].stride() == graph.tensors()[0].stride()


def test_the_text_names_calls_operators_slices_and_options():
    graph = RandomGraph(
        (InputSpec((2, 3)),),
        (
            Step("operator.mul", (Ref(0), 0.5)),
            Step(
                "operator.getitem", (Ref(1), (Mark("rest", None), Mark("slice", [None, 2, None])))
            ),
            Step("method.view", (Ref(2), Mark("size", [0, 0]), -1)),
        ),
        (3,),
    )
    assert body_text(graph).splitlines() == [
        "x1 = x0 * 0.5",
        "x2 = x1[..., :2]",
        "x3 = x2.view(x0.size(0), -1)",
        "return x3,",
    ]
    mode = Mode(properties={"NUM_STREAMS": "2"})
    assert (
        "options={'verify': 'off', 'device_options': {'NUM_STREAMS': '2'}, 'target': 'openvino'}"
        in reproducer(graph, mode)
    )
