import logging

import pytest
import torch

from npu_llm.capture.chunks import chunked_step
from npu_llm.capture.chunks.chunked_step import read_in_chunks
from npu_llm.capture.chunks.token_loop import TokenLoop
from npu_llm.capture.functional import make_functional
from npu_llm.capture.relocation import relocate
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
            step, _ = relocate(step, windowed=False)
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


@pytest.mark.parametrize("why", ["a layer sees a window of tokens", "it takes one row"])
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
    assert "its tokens differ" in caplog.text
