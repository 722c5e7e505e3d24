"""Modes: all of them are drawn, and each can be written down and made simpler."""

from __future__ import annotations

from collections import Counter

from npu_compiler.suite.random_graphs import InputSpec, RandomGraph, Ref, Step
from npu_compiler.suite.random_graphs.modes import PLAIN, Mode, draw_mode

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
