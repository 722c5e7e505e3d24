from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.cache_utils import DynamicCache, DynamicLayer

from npu_llm import CaptureError
from npu_llm.capture.functional import make_functional
from npu_llm.capture.model_cache import (
    IndexedLayer,
    LayerCache,
    StatesDifferError,
    cache_layers,
    find_states,
    is_indexed,
)
from npu_llm.capture.step import capture_step
from npu_llm.kv_cache.static_layout import TOKEN_MASK

_SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LINEAR = {
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}

# Config class, its arguments, and the model's cache besides keys and values.
_HYBRIDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}, "conv_states in 1 of 2"),
    "qwen3_next": (
        "Qwen3NextConfig",
        _LINEAR | _EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 16},
        "recurrent_states in 1 of 2",
    ),
    "qwen3_5": ("Qwen3_5TextConfig", _LINEAR, "recurrent_states in 1 of 2"),
    "granite_hybrid": (
        "GraniteMoeHybridConfig",
        _MAMBA | {"layer_types": ["mamba", "attention"], "num_local_experts": 4,
                  "num_experts_per_tok": 2, "shared_intermediate_size": 16},
        "recurrent_states in 1 of 2",
    ),
    "falcon_h1": (
        "FalconH1Config",
        _MAMBA | {"head_dim": 8, "mamba_d_ssm": 64},
        "recurrent_states in 2 of 2",
    ),
    "bamba": ("BambaConfig", _MAMBA | {"attn_layer_indices": [1]}, "recurrent_states in 1 of 2"),
    "jamba": (
        "JambaConfig",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8,
         "num_experts_per_tok": 1, "mamba_dt_rank": 4},
        "recurrent_states in 1 of 2",
    ),
    "zamba2": (
        "Zamba2Config",
        {"layers_block_type": ["mamba", "hybrid"], "mamba_d_state": 8, "mamba_headdim": 8,
         "n_mamba_heads": 8, "mamba_ngroups": 1, "num_mem_blocks": 1, "use_mem_rope": True},
        "recurrent_states in 2 of 2",
    ),
    "minimax": (
        "MiniMaxConfig",
        {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2,
         "num_experts_per_tok": 1, "head_dim": 8, "block_size": 8},
        "MiniMaxCache with linear_cache",
    ),
}  # fmt: skip


@pytest.fixture(params=sorted(_HYBRIDS))
def hybrid(request, monkeypatch):
    """A model, and its cache besides keys and values."""
    class_name, sizes, kept = _HYBRIDS[request.param]
    monkeypatch.setattr(transformers.logging.get_logger("transformers"), "disabled", True)
    torch.manual_seed(5)
    config = getattr(transformers, class_name)(**_SIZES | sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return model, kept


def test_hybrid_model_keeps_more_than_keys_and_values(hybrid):
    model, kept = hybrid
    with pytest.raises(CaptureError, match=kept) as caught:
        cache_layers(model)
    assert caught.value.code == "unsupported-cache"
    assert type(model).__name__ in str(caught.value)


class OutOfOrder(transformers.LlamaForCausalLM):
    """Fails with any cache."""

    def forward(self, input_ids, **kwargs):
        raise ValueError("first line\nsecond line")


def test_model_that_runs_with_no_cache_is_refused_with_its_own_words():
    config = transformers.LlamaConfig(**_SIZES)
    with pytest.raises(CaptureError, match="ValueError from its code, 'first line'") as caught:
        cache_layers(OutOfOrder(config).eval())
    assert caught.value.code == "unsupported-cache"


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
    # The second layer repeats the choice of the first.
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


def test_states_and_keys_are_told_apart_by_what_grows(tiny):
    found = find_states(tiny("falcon_h1").reference)
    assert found.layers == (LayerCache(2, 8, 2, 8),) * 2
    assert [state.name for state in found.shapes] == [
        "state.0.conv_states.0", "state.0.recurrent_states.0",
        "state.1.conv_states.0", "state.1.recurrent_states.0",
    ]  # fmt: skip
    assert found.shapes[1].sizes == (8, 8, 6)
    assert found.takes_rows


def test_a_model_whose_code_mixes_rows_takes_one(tiny):
    found = find_states(tiny("rwkv").reference)
    assert not found.takes_rows
    assert [state.sizes for state in found.shapes] == [(32, 2)] * 5


def test_states_that_modules_hold_are_found_and_left_as_they_were():
    config = transformers.RecurrentGemmaConfig(
        vocab_size=97, hidden_size=32, lru_width=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attention_window_size=8,
        block_types=["recurrent", "attention"],
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.RecurrentGemmaForCausalLM(config).eval()
    found = find_states(model)
    assert len(found.shapes) == 2
    assert len(found.layers) == 1
    assert model.model.layers[0].temporal_block.conv1d_state is None


@pytest.mark.parametrize("name", ["mamba", "lfm2", "rwkv"])
def test_a_captured_step_gives_token_by_token_what_the_model_gives_for_all(tiny, name):
    model = tiny(name).reference
    captured = capture_step(model)
    make_functional(captured.graph_module)
    ids = torch.randint(3, 97, (1, 9), generator=torch.Generator().manual_seed(1))
    kept = [torch.zeros(1, heads, 0, size) for heads, size in captured.caches]
    kept += [torch.zeros(1, *state.sizes) for state in captured.states]
    logits = []
    for place in range(9):
        values = {
            "input_ids": ids[:, place : place + 1],
            "attention_mask": torch.ones(1, place + 1, dtype=torch.int64),
            "position_ids": torch.tensor([[place]]),
            "logits_to_keep": torch.tensor([0]),
            TOKEN_MASK: torch.ones(1, 1, dtype=torch.int64),
        }
        with torch.no_grad():
            found, *kept = captured.graph_module(*(values[one] for one in captured.inputs), *kept)
        logits.append(found)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
    torch.testing.assert_close(torch.cat(logits, 1), expected, rtol=1e-4, atol=1e-4)


def test_padding_leaves_a_rows_states_as_they_are(tiny):
    captured = capture_step(tiny("mamba").reference)
    make_functional(captured.graph_module)
    states = [torch.randn(3, *state.sizes) for state in captured.states]
    values = {
        "input_ids": torch.tensor([[5], [6], [7]]),
        "logits_to_keep": torch.tensor([0]),
        TOKEN_MASK: torch.tensor([[1], [0], [1]]),
    }
    with torch.no_grad():
        _, *new = captured.graph_module(*(values[one] for one in captured.inputs), *states)
    for before, after in zip(states, new, strict=True):
        assert torch.equal(before[1], after[1])
        assert not torch.equal(before[0], after[0])


class Growing(torch.nn.Module):
    """Keeps one more tensor after each token."""

    def forward(self, input_ids, state=None, use_cache=True, return_dict=True):
        kept = [*(state or []), torch.zeros(len(input_ids), 4)]
        logits = torch.zeros(*input_ids.shape, 97)
        return transformers.models.rwkv.modeling_rwkv.RwkvCausalLMOutput(logits=logits, state=kept)


def test_a_cache_that_holds_more_after_each_token_is_none():
    with pytest.raises(StatesDifferError, match="more after each token"):
        find_states(Growing())
