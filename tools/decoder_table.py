"""Table of transformers' decoders for the survey: a small configuration of each.

tools/decoder_survey.py draws random weights.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DECODERS"]

_TOKENS: dict[str, Any] = {
    "vocab_size": 97, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "initializer_range": 0.3, "tie_word_embeddings": False,
}  # fmt: skip
_SIZES: dict[str, Any] = {
    **_TOKENS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
_GROUPED: dict[str, Any] = {**_SIZES, "num_key_value_heads": 2}
_HEAD: dict[str, Any] = {**_GROUPED, "head_dim": 8}
_WINDOW: dict[str, Any] = {"sliding_window": 8}
_OLD: dict[str, Any] = {**_TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
_ROUTED: dict[str, Any] = {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2}
_LOCAL: dict[str, Any] = {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
_SMALL_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 24}
_SHARED_EXPERT: dict[str, Any] = {**_SMALL_EXPERTS, "shared_expert_intermediate_size": 40}
_GROUPS_OF_EXPERTS: dict[str, Any] = {
    **_SMALL_EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_LATENT: dict[str, Any] = {
    **_SIZES, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 12,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 10,
}  # fmt: skip
_LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
    "linear_value_head_dim": 5, "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_MAMBA: dict[str, Any] = {
    **_TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 6, "conv_kernel": 4,
}  # fmt: skip
_MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 6,
    "mamba_chunk_size": 8, "mamba_d_conv": 4, "mamba_expand": 2,
}  # fmt: skip

# transformers' model_type -> the prefix of its classes, and the arguments of its configuration.
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "afmoe": (
        "Afmoe",
        {**_HEAD, **_SMALL_EXPERTS, **_WINDOW, "num_experts": 4, "num_experts_per_tok": 2,
         "num_dense_layers": 1, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "apertus": ("Apertus", _GROUPED),
    "arcee": ("Arcee", _GROUPED),
    "bamba": ("Bamba", {**_GROUPED, **_MAMBA2, "attn_layer_indices": [1]}),
    "biogpt": ("BioGpt", _SIZES),
    "bitnet": ("BitNet", _GROUPED),
    "bloom": ("Bloom", {**_TOKENS, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "codegen": ("CodeGen", {**_OLD, "rotary_dim": 4}),
    "cohere": ("Cohere", _GROUPED),
    "cohere2": ("Cohere2", {**_GROUPED, **_WINDOW}),
    "ctrl": ("CTRL", {**_OLD, "dff": 48}),
    "cwm": ("Cwm", {**_HEAD, **_WINDOW}),
    "dbrx": (
        "Dbrx",
        {**_TOKENS, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128,
         "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 4.0},
         "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48, "moe_num_experts": 4,
                        "moe_top_k": 2}, "clip_qkv": 4.0},
    ),
    "deepseek_v2": ("DeepseekV2", {**_LATENT, **_GROUPS_OF_EXPERTS}),
    "deepseek_v3": ("DeepseekV3", {**_LATENT, **_GROUPS_OF_EXPERTS}),
    "diffllama": ("DiffLlama", _GROUPED),
    "doge": ("Doge", _GROUPED),
    "dots1": ("Dots1", {**_HEAD, **_GROUPS_OF_EXPERTS, **_WINDOW}),
    "ernie4_5": ("Ernie4_5", _HEAD),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        {**_GROUPED, **_SMALL_EXPERTS, "moe_num_experts": 4, "moe_k": 2,
         "moe_layer_start_index": 1, "moe_num_shared_experts": 1},
    ),
    "exaone4": (
        "Exaone4",
        {**_HEAD, **_WINDOW, "sliding_window_pattern": 2},
    ),
    "falcon": ("Falcon", {**_SIZES, "alibi": False}),
    "falcon_h1": ("FalconH1", {**_HEAD, **_MAMBA2, "mamba_d_ssm": 64}),
    "falcon_mamba": ("FalconMamba", _MAMBA),
    "flex_olmo": ("FlexOlmo", _ROUTED),
    "gemma": ("Gemma", _HEAD),
    "gemma2": ("Gemma2", {**_HEAD, **_WINDOW}),
    "gemma3_text": (
        "Gemma3Text", {**_HEAD, **_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
    ),
    "gemma3n_text": (
        "Gemma3nText",
        {**_HEAD, **_WINDOW, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "laurel_rank": 4,
         "intermediate_size": 48, "altup_num_inputs": 3, "hidden_size_per_layer_input": 6,
         "vocab_size_per_layer_input": 97,
         "layer_types": ["sliding_attention", "full_attention"] * 2,
         "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0]},
    ),
    "glm": ("Glm", _HEAD),
    "glm4": ("Glm4", _HEAD),
    "glm4_moe": ("Glm4Moe", {**_HEAD, **_GROUPS_OF_EXPERTS}),
    "gpt2": ("GPT2", _OLD),
    "gpt_bigcode": ("GPTBigCode", _OLD),
    "gpt_neo": (
        "GPTNeo",
        {**_TOKENS, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 8,
         "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 128},
    ),
    "gpt_neox": ("GPTNeoX", _SIZES),
    "gpt_neox_japanese": ("GPTNeoXJapanese", {**_SIZES, "intermediate_multiple_size": 2}),
    "gpt_oss": ("GptOss", {**_LOCAL, **_WINDOW, "head_dim": 8}),
    "gptj": ("GPTJ", {**_OLD, "rotary_dim": 4}),
    "granite": ("Granite", _GROUPED),
    "granitemoe": ("GraniteMoe", _LOCAL),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        {**_LOCAL, **_MAMBA2, "shared_intermediate_size": 40,
         "layer_types": ["mamba", "attention"]},
    ),
    "granitemoeshared": ("GraniteMoeShared", {**_LOCAL, "shared_intermediate_size": 40}),
    "helium": ("Helium", _HEAD),
    "hunyuan_v1_dense": ("HunYuanDenseV1", _HEAD),
    "jamba": (
        "Jamba",
        {**_ROUTED, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
         "expert_layer_offset": 1, "mamba_d_state": 6, "mamba_dt_rank": 5},
    ),
    "jetmoe": (
        "JetMoe",
        {**_TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "num_key_value_heads": 2,
         "kv_channels": 8, "intermediate_size": 48, "num_local_experts": 4,
         "num_experts_per_tok": 2, "max_position_embeddings": 128},
    ),
    "lfm2": ("Lfm2", {**_GROUPED, "layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": (
        "Lfm2Moe",
        {**_ROUTED, **_SMALL_EXPERTS, "num_dense_layers": 1,
         "layer_types": ["conv", "full_attention"]},
    ),
    "llama": ("Llama", _GROUPED),
    "llama4_text": (
        "Llama4Text",
        {**_LOCAL, "head_dim": 8, "num_experts_per_tok": 1, "intermediate_size_mlp": 40,
         "attention_chunk_size": 8, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 0]},
    ),
    "mamba": ("Mamba", _MAMBA),
    "mamba2": (
        "Mamba2",
        {**_MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 2, "expand": 2, "chunk_size": 8},
    ),
    "minicpm3": ("MiniCPM3", _LATENT),
    "minimax": (
        "MiniMax",
        {**_LOCAL, "head_dim": 8, "block_size": 8,
         "layer_types": ["full_attention", "linear_attention"]},
    ),
    "minimax_m2": ("MiniMaxM2", {**_LOCAL, "head_dim": 8}),
    "ministral": ("Ministral", {**_HEAD, **_WINDOW}),
    "mistral": ("Mistral", {**_GROUPED, **_WINDOW}),
    "mixtral": ("Mixtral", _LOCAL),
    "modernbert-decoder": (
        "ModernBertDecoder",
        {**_SIZES, "local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 1,
         "sep_token_id": 2},
    ),
    "mpt": ("Mpt", {**_TOKENS, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}),
    "nanochat": ("NanoChat", _GROUPED),
    "nemotron": ("Nemotron", _GROUPED),
    "nemotron_h": (
        "NemotronH",
        {**_HEAD, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 6,
         "chunk_size": 8, "layers_block_type": ["mamba", "attention", "mlp"],
         "num_hidden_layers": 3},
    ),
    "olmo": ("Olmo", _GROUPED),
    "olmo2": ("Olmo2", _GROUPED),
    "olmo3": (
        "Olmo3", {**_GROUPED, **_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
    ),
    "olmo_hybrid": ("OlmoHybrid", {**_GROUPED, **_LINEAR}),
    "olmoe": ("Olmoe", _ROUTED),
    "opt": ("OPT", {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "persimmon": ("Persimmon", _SIZES),
    "phi": ("Phi", _GROUPED),
    "phi3": ("Phi3", _GROUPED),
    "phimoe": ("Phimoe", _LOCAL),
    "qwen2": ("Qwen2", _GROUPED),
    "qwen2_moe": ("Qwen2Moe", {**_ROUTED, **_SHARED_EXPERT}),
    "qwen3": ("Qwen3", _HEAD),
    "qwen3_5_text": ("Qwen3_5Text", {**_HEAD, **_LINEAR}),
    "qwen3_5_moe_text": ("Qwen3_5MoeText", {**_ROUTED, **_HEAD, **_LINEAR, **_SHARED_EXPERT}),
    "qwen3_moe": ("Qwen3Moe", {**_ROUTED, **_SMALL_EXPERTS, "head_dim": 8}),
    "qwen3_next": ("Qwen3Next", {**_ROUTED, **_HEAD, **_LINEAR, **_SHARED_EXPERT}),
    "recurrent_gemma": (
        "RecurrentGemma",
        {**_GROUPED, "lru_width": 32, "attention_window_size": 8,
         "block_types": ["recurrent", "attention"]},
    ),
    "rwkv": (
        "Rwkv",
        {**_TOKENS, "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2,
         "intermediate_size": 48, "context_length": 128},
    ),
    "seed_oss": ("SeedOss", _HEAD),
    "smollm3": ("SmolLM3", _GROUPED),
    "stablelm": ("StableLm", _GROUPED),
    "starcoder2": ("Starcoder2", _GROUPED),
    "vaultgemma": ("VaultGemma", {**_HEAD, **_WINDOW}),
    "xglm": (
        "XGLM",
        {**_TOKENS, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4,
         "max_position_embeddings": 128},
    ),
    "xlstm": ("xLSTM", {**_TOKENS, "hidden_size": 128, "num_heads": 4, "num_blocks": 2}),
    "youtu": ("Youtu", _LATENT),
    "zamba": (
        "Zamba",
        {**_SIZES, "num_key_value_heads": 4, "mamba_d_state": 6, "mamba_dt_rank": 4,
         "n_mamba_heads": 2, "attention_head_dim": 16, "attention_hidden_size": 64,
         "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    ),
    "zamba2": (
        "Zamba2",
        {**_SIZES, "num_key_value_heads": 4, "mamba_d_state": 6, "n_mamba_heads": 8,
         "mamba_headdim": 8, "mamba_ngroups": 1, "chunk_size": 8, "num_mem_blocks": 1,
         "attention_head_dim": 16, "adapter_rank": 4, "layers_block_type": ["mamba", "hybrid"]},
    ),
}  # fmt: skip
