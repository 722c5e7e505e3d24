import operator

import pytest
import torch

from npu_llm.capture.step import capture_step

aten = torch.ops.aten


def run(captured, ids, past):
    tokens = ids.shape[1]
    positions = torch.arange(past[0].shape[2], past[0].shape[2] + tokens)
    mask = torch.ones(ids.shape[0], int(positions[-1]) + 1, dtype=torch.int64)
    arguments = (ids, mask, positions.expand(*ids.shape), torch.arange(tokens))
    with torch.no_grad():
        return captured.graph_module(*arguments, *past)


@pytest.fixture(scope="module")
def indexed(tiny):
    """A model that chooses 16 tokens, and its step."""
    model = tiny("deepseek_v32").reference
    model.set_experts_implementation("batched_mm")
    return model, capture_step(model)


@pytest.mark.parametrize("tokens", [1, 7, 16, 17, 40])
def test_numbers_are_the_models_on_both_sides_of_the_choice(indexed, tokens):
    model, captured = indexed
    ids = torch.randint(3, 97, (2, tokens + 2), generator=torch.Generator().manual_seed(tokens))
    with torch.no_grad():
        expected = model(ids).logits
    past = [torch.zeros(2, heads, 0, size) for heads, size in captured.caches]
    first, *past = run(captured, ids[:, :tokens], past)
    second, *past = run(captured, ids[:, tokens:], past)
    torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=1e-4, atol=1e-4)
    assert [tuple(one.shape) for one in past] == [
        (2, heads, tokens + 2, size) for heads, size in captured.caches
    ]


def test_choice_matters_beyond_its_number(indexed):
    model, _ = indexed
    ids = torch.randint(3, 97, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        sparse = model(ids).logits
        for layer in model.model.layers:
            layer.self_attn.indexer.index_topk = 64
        dense = model(ids).logits
        for layer in model.model.layers:
            layer.self_attn.indexer.index_topk = 16
    torch.testing.assert_close(sparse[:, :16], dense[:, :16], rtol=1e-4, atol=1e-4)
    assert (sparse[:, 24:] - dense[:, 24:]).abs().max() > 1e-2


def test_a_choice_among_experts_stays_as_it_is(indexed):
    _, captured = indexed
    nodes = captured.graph_module.graph.find_nodes(op="call_function", target=aten.topk.default)
    counts = [node.args[1] for node in nodes]
    among_tokens = [count for count in counts if not isinstance(count, int)]
    assert len(among_tokens) == 2
    assert all(count.target is torch.sym_min for count in among_tokens)
    assert all(count.args[0] == 16 for count in among_tokens)
    assert 2 in counts
    assert operator.lt not in [node.target for node in captured.graph_module.graph.nodes]
