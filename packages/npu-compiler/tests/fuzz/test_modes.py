"""Modes: all of them are drawn, and each can be written down and made simpler."""

from __future__ import annotations

import warnings
from collections import Counter

import torch

from npu_compiler.fuzz import InputSpec, RandomGraph, Ref, Step
from npu_compiler.fuzz.drawing import draw_graph
from npu_compiler.fuzz.graph import LAYOUTS, Mark
from npu_compiler.fuzz.modes import PLAIN, Mode, body_text, draw_mode, reproducer

NAMED = RandomGraph((InputSpec((3, 4), names="b-"),), (Step("torch.sin", (Ref(0),)),), (1,))
PLAIN_SIZES = RandomGraph((InputSpec((3, 4)),), NAMED.steps, NAMED.outputs)
WRITING = RandomGraph((InputSpec((3, 4)),), (Step("method.add_", (Ref(0), 1)),), (1,))


def drawn(count: int) -> list[Mode]:
    return [draw_mode(0, i, "ops", (NAMED, PLAIN_SIZES)[i % 2]) for i in range(count)]


def test_every_mode_is_drawn():
    labels = Counter(label for mode in drawn(1500) for label in mode.labels())
    for name in ("way: recorded", "way: traced", "way: aot", "way: dynamo", "sizes: dynamic",
                 "sizes: buckets", "start: cache", "precision: bfloat16", "precision: float16",
                 "precision: own", "verify: first", "verify: off", "device: npu", "device: cpu",
                 "property: SNIPPETS_MODE=DISABLE", "property: NUM_STREAMS=2"):  # fmt: skip
        assert labels[name] > 0, name
    assert labels["verify: off"] > labels["verify: first"]


def test_a_mode_follows_from_seed_and_number():
    assert draw_mode(3, 4, "ops", NAMED) == draw_mode(3, 4, "ops", NAMED)


def test_verify_may_be_set_for_a_run():
    modes = {draw_mode(0, i, "ops", NAMED, verify="first").verify for i in range(20)}
    assert modes == {"first"}


def test_sizes_vary_only_where_axes_are_named():
    assert {draw_mode(0, i, "ops", PLAIN_SIZES).sizes for i in range(200)} == {"static"}


def test_a_graph_that_writes_goes_through_aotautograd():
    named = RandomGraph(NAMED.inputs, WRITING.steps, WRITING.outputs)
    ways = {draw_mode(0, i, "ops", g).way for i in range(200) for g in (WRITING, named)}
    assert ways == {"aot", "dynamo"}


def test_edges_propagate():
    assert draw_mode(0, 0, "edges", NAMED).nan == "propagate"


def test_a_mode_survives_its_line():
    for mode in drawn(100):
        assert Mode.from_json(mode.to_json()) == mode


def test_simpler_modes_end_at_the_plain_one():
    for mode in drawn(100):
        while mode != PLAIN:
            assert mode.simpler()
            mode = mode.simpler()[-1]
    assert PLAIN.simpler() == []


def run(graph: RandomGraph, mode: Mode = PLAIN) -> dict[str, object]:
    """The names that a reproducer leaves, with torch.compile and printing taken out."""
    text = reproducer(graph, mode).split("with torch.no_grad()")[0]
    names: dict[str, object] = {}
    exec(text, names)  # the test is about the text
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
