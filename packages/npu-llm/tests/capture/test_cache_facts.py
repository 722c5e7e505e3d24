"""Nine hybrid models, small and with random weights, which keep more than keys and values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from npu_llm import CaptureError
from npu_llm.capture.cache_facts import cache_layers

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

# Config class, its arguments, and what the model keeps besides keys and values.
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
    """A model, and what it keeps besides keys and values."""
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
