"""Drawing: a graph follows from seed and number, equal sizes meet, and every kind is drawn."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from npu_compiler.fuzz.attention import FORMS
from npu_compiler.fuzz.drawing import KINDS, draw_graph


@pytest.fixture(scope="module")
def drawn():
    return [draw_graph(11, number) for number in range(250)]


def test_a_graph_follows_from_its_seed_and_number(drawn):
    assert draw_graph(11, 42) == drawn[42]
    assert draw_graph(12, 42) != drawn[42]


def test_every_kind_is_drawn(drawn):
    kinds = Counter(kind.partition(":")[0] for kind, _ in drawn)
    assert kinds.keys() == KINDS.keys()
    assert kinds["attention"] > kinds["outside"]


def test_ten_forms_of_attention_and_more_are_drawn(drawn):
    forms = {kind.partition(":")[2] for kind, _ in drawn} - {""}
    assert forms <= FORMS.keys()
    assert len(forms) > 10


def test_tokens_and_heads_often_are_as_many(drawn):
    scores = [
        step_value.shape
        for kind, graph in drawn
        if kind.endswith(("vision_transformer", "interleaved", "bert"))
        for step_value in graph.values()
        if isinstance(step_value, torch.Tensor) and step_value.dim() == 4
    ]
    assert any(shape[1] == shape[2] > 1 for shape in scores)
    assert any(shape[1] != shape[2] for shape in scores)


def test_a_graph_runs_eagerly_and_one_with_an_index_outside_does_not(drawn):
    for kind, graph in drawn:
        if kind == "outside":
            with pytest.raises((IndexError, RuntimeError)):
                graph.values()
        else:
            assert len(graph.values()) == len(graph.inputs) + len(graph.steps)


def test_edges_are_drawn_for_floats_and_integers(drawn):
    fills = {spec.fill for kind, graph in drawn if kind == "edges" for spec in graph.inputs}
    assert fills >= {"nan", "infinite", "tiny", "edges", "extreme"}


def test_layouts_are_drawn(drawn):
    assert len({spec.layout for _, graph in drawn for spec in graph.inputs}) == 6
