"""Text decoders: causal language models, mixtures of experts, and recurrent models."""

from __future__ import annotations

import functools
from typing import Any

import torch

from npu_compiler.suite.families.architecture import (
    VOCABULARY,
    Architecture,
    drawn,
    from_config,
    padded,
    rows,
    text,
    translation,
)

__all__ = ["ARCHITECTURES", "DECODER", "MIXTURES", "STATE_SPACES"]

_TOKENS: dict[str, Any] = {
    "vocab_size": VOCABULARY, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
_SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
_WIDE: dict[str, Any] = {"intermediate_size": 128, "max_position_embeddings": 128}
DECODER: dict[str, Any] = {**_TOKENS, **_SIZES, **_WIDE, "num_key_value_heads": 2}
_OLD_SIZES: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}


def _causal(
    family: str, name: str, prefix: str, inputs: Any = text, **settings: Any
) -> Architecture:
    build = from_config(f"{prefix}ForCausalLM", f"{prefix}Config", **settings)
    return Architecture(name, family, build, inputs)


class _Step(torch.nn.Module):
    """A decoder's step: one token, with the keys and values of the tokens before it as inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.model = from_config("LlamaForCausalLM", "LlamaConfig", **DECODER)()

    def forward(self, input_ids: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns logits, and all keys and values, which have one token more than `past`."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (key, value) in enumerate(past):
            cache.update(key, value, layer)
        logits = self.model(input_ids, past_key_values=cache, use_cache=True).logits
        return (logits, *(one for layer in cache.layers for one in (layer.keys, layer.values)))


def _step() -> dict[str, torch.Tensor]:
    batch, heads, length = drawn().batch, DECODER["num_key_value_heads"], drawn().length
    shape = (2, 2, batch, heads, length - 1, DECODER["hidden_size"] // drawn().heads)
    return {"input_ids": torch.randint(3, VOCABULARY, (batch, 1)), "past": torch.randn(shape)}


_row = functools.partial(_causal, "text decoder")
_mixture = functools.partial(_causal, "mixture of experts")
_recurrent = functools.partial(_causal, "state space")
_other = rows("text decoder", text)

ARCHITECTURES = (
    _row("llama", "Llama", **DECODER),
    Architecture("llama_step", "text decoder", _Step, _step),
    _row("qwen2", "Qwen2", **DECODER),
    _row("qwen3", "Qwen3", head_dim=16, **DECODER),
    _row("mistral", "Mistral", padded, sliding_window=8, **DECODER),
    _row("gemma2", "Gemma2", head_dim=16, sliding_window=8, **DECODER),
    _row("phi3", "Phi3", **DECODER),
    _row("olmo2", "Olmo2", padded, **DECODER),
    _row("cohere", "Cohere", **DECODER),
    _row("glm4", "Glm4", head_dim=16, **DECODER),
    _row("gpt_neox", "GPTNeoX", **_TOKENS, **_SIZES, **_WIDE),
    _row("falcon", "Falcon", **_TOKENS, **_SIZES),
    _row("bloom", "Bloom", padded, hidden_size=64, n_layer=2, n_head=4, **_TOKENS),
    _other("gpt2", "GPT2LMHeadModel", "GPT2Config", **_OLD_SIZES, **_TOKENS),
    _row("gptj", "GPTJ", rotary_dim=8, **_OLD_SIZES, **_TOKENS),
    _row(
        "opt",
        "OPT",
        padded,
        ffn_dim=128,
        word_embed_proj_dim=64,
        max_position_embeddings=128,
        **_SIZES,
        **_TOKENS,
    ),
    _row("gemma", "Gemma", head_dim=16, **DECODER),
    _other(
        "gemma3",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        head_dim=16,
        sliding_window=8,
        **DECODER,
    ),
    _row("starcoder2", "Starcoder2", padded, **DECODER),
    _row("stablelm", "StableLm", **DECODER),
    _row("granite", "Granite", padded, **DECODER),
    _row("nemotron", "Nemotron", **DECODER),
    _row("olmo", "Olmo", **DECODER),
    _row("persimmon", "Persimmon", padded, **DECODER),
    _row("phi", "Phi", **DECODER),
    _row("cohere2", "Cohere2", sliding_window=8, **DECODER),
    _row("apertus", "Apertus", **DECODER),
    _row(
        "gpt_neo",
        "GPTNeo",
        attention_types=[[["global", "local"], 1]],
        window_size=8,
        num_layers=2,
        num_heads=4,
        hidden_size=64,
        max_position_embeddings=128,
        **_TOKENS,
    ),
    _row("gpt_bigcode", "GPTBigCode", **_OLD_SIZES, **_TOKENS),
    _row("codegen", "CodeGen", rotary_dim=8, **_OLD_SIZES, **_TOKENS),
    _row("biogpt", "BioGpt", padded, **_SIZES, **_WIDE, **_TOKENS),
    _row("mpt", "Mpt", padded, d_model=64, n_heads=4, n_layers=2, max_seq_len=64, **_TOKENS),
    _row(
        "xglm",
        "XGLM",
        d_model=64,
        ffn_dim=128,
        num_layers=2,
        attention_heads=4,
        max_position_embeddings=64,
        **_TOKENS,
    ),
    _other("ctrl", "CTRLLMHeadModel", "CTRLConfig", dff=128, **_OLD_SIZES, **_TOKENS),
)

# Mixtures of experts.

_ROUTED: dict[str, Any] = {**DECODER, "num_experts": 4, "num_experts_per_tok": 2}
_LOCAL: dict[str, Any] = {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}

MIXTURES = (
    _mixture("mixtral", "Mixtral", padded, **_LOCAL),
    _mixture(
        "qwen2_moe",
        "Qwen2Moe",
        moe_intermediate_size=32,
        shared_expert_intermediate_size=64,
        **_ROUTED,
    ),
    _mixture("qwen3_moe", "Qwen3Moe", head_dim=16, moe_intermediate_size=32, **_ROUTED),
    _mixture("olmoe", "Olmoe", padded, **_ROUTED),
    _mixture("gpt_oss", "GptOss", head_dim=16, sliding_window=8, **_LOCAL),
    _mixture("granitemoe", "GraniteMoe", **_LOCAL),
    _mixture("phimoe", "Phimoe", **_LOCAL),
    _mixture(
        "deepseek_v3",
        "DeepseekV3",
        **{
            **DECODER,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 32,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
        },
    ),
    Architecture(
        "switch_transformers",
        "mixture of experts",
        from_config(
            "SwitchTransformersForConditionalGeneration",
            "SwitchTransformersConfig",
            vocab_size=128,
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_decoder_layers=2,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
            num_heads=4,
            num_experts=4,
            expert_capacity=16,
            use_cache=False,
            pad_token_id=0,
            decoder_start_token_id=1,
            output_router_logits=False,
        ),
        translation,
    ),
)

# Recurrent models, and hybrids with attention.

_MAMBA: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "conv_kernel": 4, **_TOKENS,
}  # fmt: skip

STATE_SPACES = (
    _recurrent("mamba", "Mamba", **_MAMBA),
    _recurrent(
        "mamba2", "Mamba2", num_heads=8, head_dim=16, n_groups=2, expand=2, chunk_size=8, **_MAMBA
    ),
    _recurrent(
        "rwkv",
        "Rwkv",
        hidden_size=64,
        attention_hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        context_length=64,
        **_TOKENS,
    ),
    _recurrent(
        "recurrent_gemma",
        "RecurrentGemma",
        lru_width=64,
        attention_window_size=8,
        block_types=["recurrent", "attention"],
        **DECODER,
    ),
    _recurrent(
        "jamba",
        "Jamba",
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=4,
        mamba_d_state=8,
        mamba_dt_rank=8,
        **DECODER,
    ),
    _recurrent(
        "bamba",
        "Bamba",
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_n_groups=1,
        mamba_d_state=8,
        mamba_chunk_size=8,
        **DECODER,
    ),
    _recurrent("lfm2", "Lfm2", layer_types=["conv", "full_attention"], **DECODER),
    _recurrent("xlstm", "xLSTM", hidden_size=64, num_heads=4, num_blocks=2, **_TOKENS),
)
