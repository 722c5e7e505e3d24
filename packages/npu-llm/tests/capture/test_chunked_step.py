import logging
import operator

import numpy as np
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from npu_compiler.lowering import lower
from npu_llm.capture import chunked_step
from npu_llm.capture.chunked_step import TokenLoop, in_order, read_in_chunks, state_cycles
from npu_llm.capture.functional import make_functional
from npu_llm.capture.position_remapping import remap_positions
from npu_llm.capture.step import capture_step
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.models.lower_step import share_masks

_aten = torch.ops.aten


@pytest.fixture(scope="module")
def captured(tiny):
    """captured(name): its functional step of one token, made once."""
    made = {}

    def get(name: str):
        if name not in made:
            step = capture_step(tiny(name).reference)
            make_functional(step.graph_module)
            step, _ = remap_positions(step, windowed=False)
            share_masks(step.graph_module)
            made[name] = step
        return made[name]

    return get


def chunked(step, **options):
    return read_in_chunks(step, **{"windowed": False, "weights": StreamedWeights(), **options})


def calls(graph, target):
    return [node for node in graph.nodes if node.target is target]


@pytest.mark.parametrize("name, states", [("mamba", 4), ("lfm2", 1), ("falcon_h1", 4)])
def test_weights_are_read_once_for_all_tokens_and_loops_hold_no_products(captured, name, states):
    step = captured(name)
    found = chunked(step)
    assert found.reads_chunks
    graph = found.graph_module.graph
    bodies = [n.target.body.graph for n in graph.nodes if isinstance(n.target, TokenLoop)]
    assert len(bodies) == states
    for target in (_aten.linear.default, _aten.conv1d.default):
        assert not [node for body in bodies for node in calls(body, target)]
        assert len(calls(graph, target)) == len(calls(step.graph_module.graph, target))


def test_each_token_has_the_results_that_it_has_alone_however_many_are_read(captured):
    step, weights = captured("lfm2"), StreamedWeights()
    found = chunked(step)
    for tokens in (1, 2, 7):
        ids = torch.randint(3, 97, (1, tokens), generator=torch.Generator().manual_seed(tokens))
        empty = [torch.zeros(1, 2, 0, 8)] * 2 + [torch.zeros(1, 32, 3)]
        alone, held = [], empty
        for place in range(tokens):
            given = chunked_step._inputs(step, ids, place, 1)
            logits, *held = weights.run(step.graph_module, *given, *held)
            alone.append(logits)
        given = chunked_step._inputs(found, ids, 0, tokens)
        logits, *after = weights.run(found.graph_module, *given, *empty)
        torch.testing.assert_close(logits, torch.cat(alone, 1), rtol=1e-4, atol=1e-4)
        for one, other in zip(after, held, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("why", ["a layer has a sliding window", "it takes only one row"])
def test_what_reads_token_by_token_says_why(captured, caplog, why):
    step = captured("rwkv" if "row" in why else "lfm2")
    with caplog.at_level(logging.INFO, logger="npu_llm"):
        assert chunked(step, windowed="window" in why) is step
    assert why in caplog.text


def test_a_step_that_goes_wrong_in_chunks_reads_token_by_token(captured, monkeypatch, caplog):
    step = captured("mamba")
    call = TokenLoop.__call__

    def forgetful(loop, *values):
        return call(loop, *(torch.zeros_like(one) for one in values[: loop.states]),
                    *values[loop.states :])  # fmt: skip

    monkeypatch.setattr(TokenLoop, "__call__", forgetful)
    with caplog.at_level(logging.INFO, logger="npu_llm"):
        assert chunked(step) is step
    assert "its tokens' results differ" in caplog.text


def step_of_two_states():
    """A state that sums the inputs, doubled; a second that keeps the first's former value."""
    graph = fx.Graph()
    read, total, former = (graph.placeholder(name) for name in ("read", "total", "former"))
    doubled = graph.call_function(operator.mul, (read, 2))
    summed = graph.call_function(operator.add, (total, doubled))
    kept = graph.call_function(operator.add, (former, total))
    told = graph.call_function(operator.neg, (summed,))
    graph.output((told, summed, kept))
    return graph, {total: summed, former: kept}, {"doubled": doubled, "told": told}


def test_calls_between_a_state_and_its_next_value_are_a_cycle_and_others_are_not():
    graph, following, others = step_of_two_states()
    cycles = state_cycles(graph, following)
    assert {frozenset((state, after)) for state, after in following.items()} == {*cycles.values()}
    assert not {*others.values()} & {*cycles}


def test_states_that_depend_on_each_other_are_one_cycle():
    graph, following, _ = step_of_two_states()
    (total, summed), (former, kept) = following.items()
    summed.replace_input_with(total, former)  # each is now made of the other
    (cycle,) = set(state_cycles(graph, following).values())
    assert cycle == {total, summed, former, kept}


def test_a_state_that_nothing_leads_back_to_has_no_cycle():
    graph, following, others = step_of_two_states()
    total, summed = next(iter(following.items()))
    summed.replace_input_with(total, others["doubled"])
    assert not {total, summed} & set(state_cycles(graph, following))


def test_each_comes_after_what_it_reads_and_a_cycle_as_one():
    graph, following, _ = step_of_two_states()
    cycles = state_cycles(graph, following)
    ordered = in_order(graph.nodes, cycles)
    place = {node: index for index, unit in enumerate(ordered) for node in
             ([unit] if isinstance(unit, fx.Node) else unit)}  # fmt: skip
    assert set(place) == set(graph.nodes)
    assert len(ordered) == len(set(graph.nodes)) - 2
    for node in graph.nodes:
        assert all(place[one] <= place[node] for one in node.all_input_nodes)


def loop_of_one_state() -> TokenLoop:
    """state * 0.5 + row, all plus a constant; returns the state before it."""
    graph = fx.Graph()
    state, row, same = (graph.placeholder(name) for name in ("state", "row", "same"))
    half = graph.call_function(_aten.mul.Tensor, (state, 0.5))
    summed = graph.call_function(_aten.add.Tensor, (half, row))
    after = graph.call_function(_aten.add.Tensor, (summed, same))
    graph.output((after, state))
    for node in graph.nodes:
        if node.op != "output":
            with FakeTensorMode():
                node.meta["val"] = torch.empty(*([1] if node is not same else []), 3)
    return TokenLoop(fx.GraphModule({}, graph), states=1, rows=1)


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_the_lowered_loop_is_the_loop(tokens, core):
    loop = loop_of_one_state()
    graph = fx.Graph()
    values = [torch.randn(1, 3), torch.randn(tokens, 3), torch.randn(3)]
    inputs = [graph.placeholder(name) for name in ("state", "rows", "same")]
    call = graph.call_function(loop, tuple(inputs))
    expected = loop(*values)
    items = [graph.call_function(operator.getitem, (call, index)) for index in range(2)]
    graph.output(tuple(items))
    with FakeTensorMode() as mode:
        for node, value in zip(inputs, values, strict=True):
            node.meta["val"] = mode.from_tensor(value)
        call.meta["val"] = [mode.from_tensor(one) for one in expected]
        for item, one in zip(items, call.meta["val"], strict=True):
            item.meta["val"] = one
    model = lower(fx.GraphModule({}, graph)).model
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    got = compiled([value.numpy() for value in values])
    for index, one in enumerate(expected):
        np.testing.assert_allclose(got[index], one.numpy(), rtol=1e-6, atol=1e-6)


def test_a_state_goes_from_token_to_token_and_each_tells_the_one_before():
    rows = torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 3)
    after, before = loop_of_one_state()(torch.full((1, 3), 4.0), rows, torch.zeros(3))
    assert before[:, 0].tolist() == [4.0, 3.0, 3.5]
    assert after.tolist() == [[4.75] * 3]
