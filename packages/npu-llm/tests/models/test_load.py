"""Limits of a loaded kernel program: as many blocks as fit into memory."""

import pytest
import torch

from npu_llm import NPUModelForCausalLM
from npu_llm.checkpoint.facts import read_facts
from npu_llm.checkpoint.requirements import cache_bytes_per_token
from npu_llm.checkpoint.source import find_source
from npu_llm.errors import ContextError
from npu_llm.models import kernel_loading as module
from npu_llm.precision import PRECISIONS

IDS = torch.tensor([[5, 9, 3, 7, 1, 4]])
SHORT = {"do_sample": False, "max_new_tokens": 3}


@pytest.fixture
def folder(saved_tiny):
    return saved_tiny("llama", hidden_size=64, num_hidden_layers=1)


@pytest.fixture
def load(folder, shared):
    """load(dtype, ...): the same small model each time."""

    def get(dtype="float32", folder=folder, **how):
        shared.load(NPUModelForCausalLM, folder, dtype=dtype, pipeline="kernels")
        return NPUModelForCausalLM.from_pretrained(
            folder, dtype=dtype, pipeline="kernels", cache_dir=shared.cache_dir(folder), **how
        )

    return get


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("kv_cache", [None, "u8"])
def test_a_block_takes_what_is_computed_beforehand(load, folder, dtype, kv_cache):
    facts = read_facts(find_source(folder))
    expected = cache_bytes_per_token(facts, PRECISIONS[dtype], kv_cache, kernels=True)
    store = load(dtype, kv_cache=kv_cache)._pipeline.pool.store
    assert store.block_bytes == 16 * expected


def test_blocks_are_bounded_by_memory(load, monkeypatch):
    block = load()._pipeline.pool.store.block_bytes
    monkeypatch.setattr(module, "spare_bytes", lambda _: 21 * block + 5)
    model = load()
    assert model._pipeline.pool.most == 21
    expected = model.generate(IDS, **SHORT)
    with pytest.raises(ContextError, match="the maximum that fits into memory") as caught:
        model(IDS.repeat(22, 1))
    assert caught.value.code == "cache-blocks"
    assert model._pipeline.pool.used == 0
    assert torch.equal(model.generate(IDS, **SHORT), expected)
    assert model(IDS.repeat(21, 1)).logits.shape[0] == 21


@pytest.mark.parametrize("asked, blocks", [(None, 64), (1000, 63), (40, 16)])
def test_the_tokens_that_were_promised_have_room(load, saved_tiny, monkeypatch, asked, blocks):
    """Whether they fit was checked before: less may be free a moment later."""
    folder = saved_tiny("llama", max_position_embeddings=4096, num_hidden_layers=1)
    load(folder=folder)
    monkeypatch.setattr(module, "spare_bytes", lambda _: -1)
    model = load(folder=folder, max_context=asked)
    assert model._pipeline.pool.most == blocks
