"""Decoders of text: causal language models without experts and without recurrent state.

Those with experts are in mixture_of_experts.py, those with a recurrent state in state_space.py.
"""

from __future__ import annotations

from typing import Any

from npu_compiler.suite.architecture import VOCABULARY, Architecture, from_config, padded, text

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
    build = from_config(f"{prefix}ForCausalLM", f"{prefix}Config", **settings)
    return Architecture(name, "text decoder", build, inputs)


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
    Architecture(
        "gpt2",
        "text decoder",
        from_config("GPT2LMHeadModel", "GPT2Config", **_OLD_SIZES, **_TOKENS),
        text,
    ),
    _row("gptj", "GPTJ", rotary_dim=8, **_OLD_SIZES, **_TOKENS),
    Architecture(
        "opt",
        "text decoder",
        from_config(
            "OPTForCausalLM",
            "OPTConfig",
            ffn_dim=128,
            word_embed_proj_dim=64,
            max_position_embeddings=128,
            **_SIZES,
            **_TOKENS,
        ),
        padded,
    ),
)
