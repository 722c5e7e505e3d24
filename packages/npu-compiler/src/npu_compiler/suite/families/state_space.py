"""State space models and others with a recurrent state, alone and mixed with attention."""

from __future__ import annotations

from typing import Any

from npu_compiler.suite.families.architecture import VOCABULARY, Architecture, from_config, text
from npu_compiler.suite.families.text_decoders import DECODER

__all__ = ["ARCHITECTURES"]

_TOKENS: dict[str, Any] = {
    "vocab_size": VOCABULARY, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
_MAMBA: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "conv_kernel": 4, **_TOKENS,
}  # fmt: skip


def _row(name: str, prefix: str, **settings: Any) -> Architecture:
    build = from_config(f"{prefix}ForCausalLM", f"{prefix}Config", **settings)
    return Architecture(name, "state space", build, text)


ARCHITECTURES = (
    _row("mamba", "Mamba", **_MAMBA),
    _row(
        "mamba2", "Mamba2", num_heads=8, head_dim=16, n_groups=2, expand=2, chunk_size=8, **_MAMBA
    ),
    _row(
        "rwkv",
        "Rwkv",
        hidden_size=64,
        attention_hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        context_length=64,
        **_TOKENS,
    ),
    _row(
        "recurrent_gemma",
        "RecurrentGemma",
        lru_width=64,
        attention_window_size=8,
        block_types=["recurrent", "attention"],
        **DECODER,
    ),
    _row(
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
    _row(
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
    _row("lfm2", "Lfm2", layer_types=["conv", "full_attention"], **DECODER),
    _row("xlstm", "xLSTM", hidden_size=64, num_heads=4, num_blocks=2, **_TOKENS),
)
