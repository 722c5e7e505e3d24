"""Mixture of experts: each token goes through a few of many feed-forward nets."""

from __future__ import annotations

from typing import Any

from npu_compiler.suite.families.architecture import (
    Architecture,
    from_config,
    padded,
    text,
    translation,
)
from npu_compiler.suite.families.text_decoders import DECODER

__all__ = ["ARCHITECTURES"]

_ROUTED: dict[str, Any] = {**DECODER, "num_experts": 4, "num_experts_per_tok": 2}
_LOCAL: dict[str, Any] = {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}


def _row(name: str, prefix: str, inputs: Any = text, **settings: Any) -> Architecture:
    build = from_config(f"{prefix}ForCausalLM", f"{prefix}Config", **settings)
    return Architecture(name, "mixture of experts", build, inputs)


ARCHITECTURES = (
    _row("mixtral", "Mixtral", padded, **_LOCAL),
    _row(
        "qwen2_moe",
        "Qwen2Moe",
        moe_intermediate_size=32,
        shared_expert_intermediate_size=64,
        **_ROUTED,
    ),
    _row("qwen3_moe", "Qwen3Moe", head_dim=16, moe_intermediate_size=32, **_ROUTED),
    _row("olmoe", "Olmoe", padded, **_ROUTED),
    _row("gpt_oss", "GptOss", head_dim=16, sliding_window=8, **_LOCAL),
    _row("granitemoe", "GraniteMoe", **_LOCAL),
    _row("phimoe", "Phimoe", **_LOCAL),
    _row(
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
