"""Decoders of text: causal language models without experts and without recurrent state."""

from __future__ import annotations

from typing import Any

from npu_compiler.suite.families.architecture import (
    VOCABULARY,
    Architecture,
    from_config,
    padded,
    text,
)

__all__ = ["ARCHITECTURES", "DECODER"]

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


def _row(name: str, prefix: str, inputs: Any = text, **settings: Any) -> Architecture:
    return _other(name, f"{prefix}ForCausalLM", f"{prefix}Config", inputs, **settings)


def _other(name: str, model: str, config: str, inputs: Any = text, **settings: Any) -> Architecture:
    return Architecture(name, "text decoder", from_config(model, config, **settings), inputs)


ARCHITECTURES = (
    _row("llama", "Llama", **DECODER),
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
