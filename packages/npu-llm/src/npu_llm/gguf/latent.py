"""Rows of the table for decoders with latent attention, some with an indexer or states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from npu_llm.gguf.keys import Keys
from npu_llm.gguf.mixtures import DEEPSEEK_ROUTED, SIGMOID, SOFTMAX, expert_count, needs_gating
from npu_llm.gguf.ropes import Rope, read_rope
from npu_llm.gguf.rows import DECODER, EMBEDDINGS, GATED, Architecture, At, Named, experts
from npu_llm.gguf.weights import Weight, joined

__all__ = ["LATENT"]

_MLP = "model.layers.*.mlp"


def _deepseek_sizes(keys: Keys) -> tuple[int, int, int]:
    """Returns the sizes of a query head with and without rotation, and the size of a value head."""
    rotated = keys.number("rope.dimension_count")
    keys.get("attention.key_length", None), keys.get("attention.value_length", None)
    key = "_mla" if keys.has("attention.key_length_mla") else ""
    query = keys.number(f"attention.key_length{key}", keys.width // keys.heads)
    value = keys.number(f"attention.value_length{key}", keys.width // keys.heads)
    if not 0 < rotated < query:
        raise keys.refuse("must have rope.dimension_count within a head's query")
    return rotated, query - rotated, value


def _key_and_value(at: At) -> Weight:
    """Returns the projection from latent values to each head's keys and values."""
    if at.has("blk.*.attn_kv_b"):
        return at.weight("blk.*.attn_kv_b")
    key, value = at.weight("blk.*.attn_k_b"), at.weight("blk.*.attn_v_b")
    count, rank, rows = key.shape

    def join(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values.swapaxes(1, 2), value.values().numpy()], 1).reshape(-1, rank)

    shape = (count * (rows + value.shape[1]), rank)
    return key.then(join, shape).reading(value.tensors)


def _deepseek_rope(keys: Keys) -> Mapping[str, Rope]:
    rope = read_rope(keys, rotated=keys.number("rope.dimension_count"))
    multiplier = _deepseek_multiplier(keys)
    if rope.scaling == "yarn" and multiplier:
        return {"": Rope(**{**vars(rope), "scale": keys.real("rope.scaling.attn_factor", 1.0)})}
    return {"": rope}


def _deepseek_multiplier(keys: Keys) -> float:
    return keys.real("rope.scaling.yarn_log_multiplier", 0.0) / 0.1


def _scale_attention(model: Any, keys: Keys) -> None:
    """Sets the scale of attention scores, which YaRN changes too."""
    rope = _deepseek_rope(keys)[""]
    rotated, plain, _ = _deepseek_sizes(keys)
    magnitude = rope.scale * (1.0 + 0.1 * _deepseek_multiplier(keys) * math.log(rope.factor))
    scale = magnitude**2 / math.sqrt(rotated + plain)
    for layer in model.base_model.layers:
        layer.self_attn.scaling = scale


_NAMES: Mapping[str, Named] = {
    **EMBEDDINGS,
    **GATED,
    "model.layers.*.input_layernorm": "blk.*.attn_norm",
    "model.layers.*.self_attn.q_proj": "blk.*.attn_q",
    "model.layers.*.self_attn.q_a_proj": "blk.*.attn_q_a",
    "model.layers.*.self_attn.q_a_layernorm": "blk.*.attn_q_a_norm",
    "model.layers.*.self_attn.q_b_proj": "blk.*.attn_q_b",
    "model.layers.*.self_attn.kv_a_proj_with_mqa": "blk.*.attn_kv_a_mqa",
    "model.layers.*.self_attn.kv_a_layernorm": "blk.*.attn_kv_a_norm",
    "model.layers.*.self_attn.kv_b_proj": _key_and_value,
    "model.layers.*.self_attn.o_proj": "blk.*.attn_output",
}


def _rank(keys: Keys) -> int | None:
    keys.get("attention.q_lora_rank", None)
    if keys.has_tensor("blk.*.attn_q.weight"):
        return None
    return keys.number("attention.q_lora_rank")


_CONFIG: Mapping[str, Any] = {
    **{name: of for name, of in DECODER.items() if name not in ("num_key_value_heads", "head_dim")},
    **DEEPSEEK_ROUTED,
    "num_key_value_heads": lambda keys: keys.number("attention.head_count_kv", 0) and keys.heads,
    "q_lora_rank": _rank,
    "kv_lora_rank": lambda keys: keys.number("attention.kv_lora_rank"),
    "qk_rope_head_dim": lambda keys: _deepseek_sizes(keys)[0],
    "qk_nope_head_dim": lambda keys: _deepseek_sizes(keys)[1],
    "v_head_dim": lambda keys: _deepseek_sizes(keys)[2],
    "head_dim": lambda keys: _deepseek_sizes(keys)[0],
}


def _indexer_types(keys: Keys) -> list[str]:
    """Returns which layers select the tokens to attend to, and which reuse the last selection."""
    types = keys.get("attention.indexer.types", None)
    if types is None:  # GLM 5.2 is the first with shared selections, and has this context
        is_shared = keys.number("context_length") >= 1 << 20
        types = [not is_shared or at < 3 or at % 4 == 2 for at in range(keys.layers)]
    return ["full" if one else "shared" for one in types[: keys.layers]]


def _linear_or_full(keys: Keys) -> list[str]:
    counts = keys.by_layer("attention.head_count_kv")
    return ["full_attention" if count else "linear_attention" for count in counts]


def _convolutions(at: At) -> Weight:
    """Returns the convolutions of queries, keys and values, concatenated by channel."""
    parts = [at.weight(f"blk.*.ssm_conv1d_{part}") for part in "qkv"]
    return joined([one.view(-1, 1, one.shape[-1]) for one in parts])


def _decays(at: At) -> Weight:
    found = at.weight("=blk.*.ssm_a")
    shape = (1, 1, found.numel(), 1)
    return found.then(lambda values: np.log(-values).reshape(shape), shape)


_INDEXER: Mapping[str, Named] = {
    "model.layers.*.self_attn.indexer.wq_b": "blk.*.indexer.attn_q_b",
    "model.layers.*.self_attn.indexer.wk": "blk.*.indexer.attn_k",
    "model.layers.*.self_attn.indexer.k_norm": "blk.*.indexer.k_norm",
    "model.layers.*.self_attn.indexer.weights_proj": "blk.*.indexer.proj",
}
_INDEXER_CONFIG: Mapping[str, Any] = {
    "index_topk": lambda keys: keys.number("attention.indexer.top_k"),
    "index_head_dim": lambda keys: keys.number("attention.indexer.key_length"),
    "index_n_heads": lambda keys: keys.number("attention.indexer.head_count"),
}
_ROUTED = experts(_MLP, bias="gate.e_score_correction_bias", shared="shared_experts")


LATENT: Mapping[str, Architecture] = {
    "deepseek2": Architecture(
        "deepseek_v2",
        {**_NAMES, **experts(_MLP, shared="shared_experts")},
        {
            **_CONFIG,
            "topk_method": "greedy",
            "scoring_func": needs_gating(SOFTMAX, default=SOFTMAX),
        },
        ropes=_deepseek_rope,
        prepare=_scale_attention,
        without_effect=("attention.head_count_kv",),
    ),
    "deepseek2(sigmoid)": Architecture(
        "deepseek_v3",
        {**_NAMES, **_ROUTED},
        {**_CONFIG, "rope_interleave": True, "gating": needs_gating(SIGMOID)},
        ropes=_deepseek_rope,
        prepare=_scale_attention,
        optional=("exp_probs_b.bias",),
        without_effect=("attention.head_count_kv",),
    ),
    "deepseek32": Architecture(
        "deepseek_v32",
        {**_NAMES, **_INDEXER, **_ROUTED},
        {**_CONFIG, **_INDEXER_CONFIG, "gating": needs_gating(SIGMOID)},
        ropes=_deepseek_rope,
        prepare=_scale_attention,
        optional=("exp_probs_b.bias",),
        without_effect=("attention.head_count_kv",),
    ),
    "glm-dsa": Architecture(
        "glm_moe_dsa",
        {**_NAMES, **_INDEXER, **_ROUTED},
        {
            **_CONFIG,
            **_INDEXER_CONFIG,
            "gating": needs_gating(SIGMOID, default=SIGMOID),
            "indexer_types": _indexer_types,
        },
        ropes=_deepseek_rope,
        prepare=_scale_attention,
        optional=("exp_probs_b.bias",),
        without_effect=("attention.head_count_kv",),
    ),
    "kimi-linear": Architecture(
        "kimi_linear",
        {
            **_NAMES,
            **_ROUTED,
            "model.layers.*.self_attn.k_proj": "blk.*.attn_k",
            "model.layers.*.self_attn.v_proj": "blk.*.attn_v",
            "model.layers.*.self_attn.conv1d": _convolutions,
            "model.layers.*.self_attn.forget_gate.dt_bias": "blk.*.ssm_dt.bias",
            "model.layers.*.self_attn.forget_gate.A_log": _decays,
            "model.layers.*.self_attn.forget_gate.f_a_proj": "blk.*.ssm_f_a",
            "model.layers.*.self_attn.forget_gate.f_b_proj": "blk.*.ssm_f_b",
            "model.layers.*.self_attn.b_proj": "blk.*.ssm_beta",
            "model.layers.*.self_attn.g_a_proj": "blk.*.ssm_g_a",
            "model.layers.*.self_attn.g_b_proj": "blk.*.ssm_g_b",
            "model.layers.*.self_attn.o_norm": "blk.*.ssm_norm",
        },
        {
            **_CONFIG,
            "num_key_value_heads": lambda keys: keys.heads,
            "layer_types": _linear_or_full,
            "num_local_experts": expert_count,
            "num_experts_per_tok": lambda keys: keys.number("expert_used_count"),
            "n_shared_experts": lambda keys: keys.number("expert_shared_count", 1),
            "linear_head_dim": lambda keys: keys.number("kda.head_dim"),
            "linear_num_heads": lambda keys: keys.heads,
            "linear_conv_kernel_dim": lambda keys: keys.number("ssm.conv_kernel"),
            "norm_topk_prob": True,
            "gating": needs_gating(SIGMOID),
        },
        ropes=None,
        # Its latent attention has no positions.
        without_effect=("rope.freq_base", "expert_weights_norm"),
    ),
    "minicpm3": Architecture(
        "minicpm3",
        _NAMES,
        {
            **{name: of for name, of in _CONFIG.items() if name not in DEEPSEEK_ROUTED},
            "num_key_value_heads": lambda keys: keys.heads,
            "v_head_dim": lambda keys: keys.number(
                "attention.value_length", keys.width // keys.heads
            ),
            "scale_emb": 12.0,
            "scale_depth": 1.4,
            "dim_model_base": 256,
        },
        ropes=lambda keys: {"": read_rope(keys, rotated=keys.number("rope.dimension_count"))},
        without_effect=("attention.head_count_kv",),
    ),
}
