import pytest
import torch
import transformers
from transformers.cache_utils import DynamicCache, DynamicLayer

from npu_llm.capture.cache_facts import LayerCache, cache_layers
from npu_llm.capture.indexed_cache import IndexedLayer, is_indexed

pytestmark = pytest.mark.skipif(
    not hasattr(transformers.cache_utils, "DynamicIndexedLayer"),
    reason="this version of transformers has no model with an indexer",
)


def test_keys_of_the_indexer_grow_as_those_of_transformers_do():
    theirs, ours = transformers.cache_utils.DynamicIndexedLayer(), IndexedLayer()
    ours.indexer_keys = torch.zeros(3, 1, 0, 5)
    for tokens in (4, 1):
        keys = torch.randn(3, tokens, 5)
        torch.testing.assert_close(ours.update_indexer(keys), theirs.update_indexer(keys))
    assert ours.indexer_keys.shape == (3, 1, 5, 5)


def test_layer_that_keeps_positions_too_is_another_kind():
    layer = transformers.cache_utils.DynamicIndexedLayer()
    assert is_indexed(layer)
    assert not is_indexed(DynamicLayer())
    layer.indexer_position_ids = torch.zeros(1, 2, 3)
    assert not is_indexed(layer)


def test_facts_tell_which_layers_have_an_indexer(tiny):
    # The second layer chooses what the first one chose.
    first, second = cache_layers(tiny("glm_moe_dsa").reference)
    assert first == LayerCache(1, 20, 1, 8, 12)
    assert second == LayerCache(1, 20, 1, 8)
    assert first.shapes == {"key": (1, 20), "value": (1, 8), "index": (1, 12)}
    assert "index" not in second.shapes


def test_a_cache_of_positions_besides_is_refused(tiny, monkeypatch):
    own = DynamicCache.update_indexer

    def with_positions(cache, keys, layer):
        cache.layers[layer].indexer_position_ids = torch.zeros(1, *keys.shape[:2])
        return own(cache, keys, layer)

    monkeypatch.setattr(DynamicCache, "update_indexer", with_positions)
    with pytest.raises(Exception, match="indexer_position_ids in 2 of 2") as caught:
        cache_layers(tiny("deepseek_v32").reference)
    assert caught.value.code == "unsupported-cache"
