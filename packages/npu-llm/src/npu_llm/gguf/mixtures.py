"""Rows of the table for decoders with mixtures of experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from npu_llm.gguf.dense import (
    PAIRED,
    PICTURES,
    QK_NORMED,
    QKV_BIASES,
    has_biases,
    layer_types,
    two_ropes,
)
from npu_llm.gguf.keys import Keys
from npu_llm.gguf.ropes import Rope, read_rope
from npu_llm.gguf.rows import (
    DECODER,
    LLAMA,
    Architecture,
    At,
    either,
    experts,
    fused,
    real,
)
from npu_llm.gguf.weights import Weight, joined

__all__ = [
    "DEEPSEEK_ROUTED",
    "GRANITE",
    "MIXTURES",
    "ROUTED",
    "SIGMOID",
    "SOFTMAX",
    "expert_count",
    "expert_width",
    "needs_gating",
    "row_of_gate",
]

SOFTMAX, SIGMOID = 1, 2
_MLP = "model.layers.*.mlp"


def expert_count(keys: Keys) -> int:
    """Returns the number of experts per layer."""
    count = keys.size("blk.*.ffn_gate_inp.weight", 0, "expert_count")
    if count != keys.number("expert_count"):
        raise keys.refuse(f"must have expert_count = {count}, as ffn_gate_inp.weight has")
    return count


def expert_width(keys: Keys) -> int:
    """Returns the rows of an expert's up projection."""
    keys.get("expert_feed_forward_length", None)
    if keys.has_tensor("blk.*.ffn_gate_up_exps.weight"):
        return keys.size("blk.*.ffn_gate_up_exps.weight", 1, "") // 2
    return keys.size("blk.*.ffn_up_exps.weight", 1, "")


def _shared_width(keys: Keys) -> int:
    keys.get("expert_shared_feed_forward_length", None)
    return keys.size("blk.*.ffn_up_shexp.weight", 0, "", default=0)


def _used(keys: Keys) -> int:
    return keys.number("expert_used_count")


def _scale(keys: Keys) -> float:
    return keys.real("expert_weights_scale", 0.0) or 1.0


def _is_normed(keys: Keys) -> bool:
    return bool(keys.get("expert_weights_norm", False))


def _must_be_normed(keys: Keys) -> bool:
    if not _is_normed(keys):
        raise keys.refuse("must have expert_weights_norm, since the class always divides by it")
    return True


def _dense_first(keys: Keys) -> int:
    return keys.number("leading_dense_block_count", 0)


ROUTED: Mapping[str, Any] = {
    "num_experts": expert_count,
    "num_experts_per_tok": _used,
    "moe_intermediate_size": expert_width,
}
_QKV_NORMED = {**LLAMA, **QK_NORMED}
_WITHOUT_MLP = {name: of for name, of in LLAMA.items() if ".mlp." not in name}


def row_of_gate(at: At) -> Weight:
    """Returns the gate of a shared expert as a one-row matrix."""
    found = at.weight("blk.*.ffn_gate_inp_shexp")
    return found.view(1, found.shape[-1])


def _one_row(name: str) -> Any:
    def find(at: At) -> Weight:
        found = at.weight(name)
        return found.view(1, found.shape[-1])

    return find


DEEPSEEK_ROUTED: Mapping[str, Any] = {
    "n_routed_experts": expert_count,
    "num_experts_per_tok": _used,
    "moe_intermediate_size": expert_width,
    "n_shared_experts": lambda keys: keys.number("expert_shared_count", 1),
    "first_k_dense_replace": _dense_first,
    "routed_scaling_factor": _scale,
    "norm_topk_prob": _is_normed,
    "n_group": lambda keys: keys.number("expert_group_count", 0) or 1,
    "topk_group": lambda keys: keys.number("expert_group_used_count", 0) or 1,
}


def _interleaved(gate: Weight, up: Weight) -> Weight:
    """Interleaves rows of experts' gate and up projections, as in gpt-oss."""
    both = joined([gate, up], axis=1)
    count, rows, columns = both.shape
    turns = np.arange(rows).reshape(2, rows // 2).swapaxes(0, 1).reshape(-1)
    order = (np.arange(count)[:, None] * rows + turns).reshape(-1)
    return both.view(count * rows, columns).take(order).view(count, rows, columns)


def _oss_gate_up(at: At) -> Weight:
    gate, up = (at.weight(f"blk.*.ffn_{part}_exps.weight") for part in ("gate", "up"))
    return _interleaved(gate, up).transposed()


def _oss_gate_up_bias(at: At) -> Weight:
    gate, up = (at.weight(f"blk.*.ffn_{part}_exps.bias") for part in ("gate", "up"))

    def turn(values: np.ndarray) -> np.ndarray:
        return np.stack([values, up.values().numpy()], -1).reshape(values.shape[0], -1)

    return gate.then(turn, (gate.shape[0], gate.shape[1] * 2)).reading(up.tensors)


def _down_transposed(at: At) -> Weight:
    return at.weight("blk.*.ffn_down_exps.weight").transposed()


def _gate_up_transposed(at: At) -> Weight:
    both = [at.weight(f"blk.*.ffn_{part}_exps.weight") for part in ("gate", "up")]
    return joined(both, axis=1).transposed()


def _partial(keys: Keys) -> float:
    return keys.rotated / keys.head_dim


def _has_experts(keys: Keys) -> list[bool]:
    tensors = keys.file.tensors
    return [f"blk.{layer}.ffn_gate_inp.weight" in tensors for layer in range(keys.layers)]


def needs_gating(*allowed: int, default: int | None = None) -> Any:
    """Returns a config entry that checks how experts are scored, and has no value."""

    def check(keys: Keys) -> int:
        return keys.gating(*allowed, default=default)

    return check


GRANITE: Mapping[str, Any] = {
    "attention_bias": has_biases(),
    "logits_scaling": real("logit_scale"),
    "residual_multiplier": lambda keys: keys.real("residual_scale", 0.0) or 1.0,
    "embedding_multiplier": lambda keys: keys.real("embedding_scale", 0.0) or 1.0,
    "attention_multiplier": lambda keys: (
        keys.real("attention.scale", 0.0) or 1.0 / math.sqrt(keys.head_dim)
    ),
}


def _llama_4_rope(keys: Keys) -> list[int]:
    if keys.number("attention.sliding_window", 1) == 0:
        return [1] * keys.layers
    return [int((layer + 1) % 4 != 0) for layer in range(keys.layers)]


def _is_chunked(keys: Keys) -> bool:
    return keys.number("attention.sliding_window", 1) != 0


def _types_of_llama_4(keys: Keys) -> list[str]:
    if not _is_chunked(keys):
        return ["full_attention"] * keys.layers
    found: list[str] = layer_types(4)(keys)
    return [one.replace("sliding", "chunked") for one in found]


def _shared_input(at: At) -> Weight:
    return joined([at.weight(f"blk.*.ffn_{part}_shexp") for part in ("gate", "up")])


def _rows_of_all(part: str) -> Any:
    """Concatenates the experts' matrices by row."""

    def find(at: At) -> Weight:
        found = at.weight(f"blk.*.ffn_{part}_exps.weight")
        return found.view(-1, found.shape[-1])

    return find


def _columns_of_all(at: At) -> Weight:
    found = at.weight("blk.*.ffn_down_exps.weight").transposed()
    return found.view(-1, found.shape[-1])


def _norms_of_dbrx(model: Any, keys: Keys) -> None:
    """Sets the constant of norms, for which the class uses torch's default."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = keys.real("attention.layer_norm_epsilon")


def _mlp_types(keys: Keys) -> list[str]:
    return ["sparse" if one else "dense" for one in _has_experts(keys)]


def _head_of_laguna(keys: Keys) -> int:
    size = keys.number("attention.key_length")
    if keys.number("attention.value_length", size) != size:
        raise keys.refuse("must have attention.value_length equal to key_length")
    return size


def _ropes_of_laguna(keys: Keys) -> Mapping[str, Rope]:
    size = keys.number("rope.dimension_count", _head_of_laguna(keys))
    full = read_rope(keys, rotated=size)
    windowed = read_rope(
        keys,
        rotated=keys.number("rope.dimension_count_swa", size),
        base=keys.real("rope.freq_base_swa", full.base),
        is_scaled=False,
    )
    return {"full_attention_": full, "sliding_attention_": windowed}


def _kv_heads_of_mimo(keys: Keys) -> int:
    """Returns the key heads of layers without a window; others have twice as many."""
    counts = keys.by_layer("attention.head_count_kv")
    times = {"full_attention": 1, "sliding_attention": 2}
    types = layer_types(0)(keys)
    found = {count / times[one] for count, one in zip(counts, types, strict=True)}
    if len(found) != 1 or not found <= set(range(1, keys.heads + 1)):
        raise keys.refuse(
            "must have twice as many key heads in layers with a window as in others, got "
            f"attention.head_count_kv {counts!r:.60}"
        )
    return int(found.pop())


def _part_of_mimo(part: str) -> Any:
    """Returns queries, keys or values of heads with different widths, from one tensor or three."""

    def find(at: At) -> Weight:
        if at.has(f"blk.*.attn_{part}"):
            return at.weight(f"blk.*.attn_{part}")
        whole = at.weight("blk.*.attn_qkv")
        size = at.keys.number("attention.key_length")
        kv_heads = at.by_layer("attention.head_count_kv", None)
        q, k = at.keys.heads * size, kv_heads * size
        v = kv_heads * at.keys.number("attention.value_length")
        first, last = {"q": (0, q), "k": (q, q + k), "v": (q + k, q + k + v)}[part]
        return whole.rows(first, last) if whole.shape[0] == q + k + v else whole

    return find


def _ropes_of_mimo(keys: Keys) -> Mapping[str, Rope]:
    size = keys.number("rope.dimension_count")
    base = keys.real("rope.freq_base_swa", 10_000.0)
    return {
        "full_attention_": read_rope(keys, rotated=size),
        "sliding_attention_": read_rope(keys, rotated=size, base=base, is_scaled=False),
    }


def _gate_of_laguna(keys: Keys) -> str:
    rows = keys.size("blk.*.attn_gate.weight", 0, "")
    return "per-head" if rows == keys.by_layer("attention.head_count")[0] else "per-element"


def _types_of_laguna(keys: Keys) -> list[str]:
    types: list[str] = layer_types(4, dense_first=True)(keys)
    has_window = keys.number("attention.sliding_window", 0)
    return types if has_window else ["full_attention"] * keys.layers


_QWEN_3 = Architecture(
    "qwen3_moe",
    {**_QKV_NORMED, **experts(_MLP)},
    {
        **DECODER,
        **ROUTED,
        "num_local_experts": expert_count,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
        "attention_bias": has_biases(),
    },
)

MIXTURES: Mapping[str, Architecture] = {
    "llama(experts)": Architecture(
        "mixtral",
        {**PAIRED, **experts(_MLP)},
        {
            **DECODER,
            **ROUTED,
            "num_local_experts": expert_count,
            "intermediate_size": expert_width,
            "sliding_window": None,
        },
        without_effect=("feed_forward_length",),
    ),
    "qwen2moe": Architecture(
        "qwen2_moe",
        {
            **LLAMA,
            **experts(_MLP, shared="shared_expert"),
            f"{_MLP}.shared_expert_gate": row_of_gate,
        },
        {
            **DECODER,
            **ROUTED,
            "shared_expert_intermediate_size": _shared_width,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "use_sliding_window": False,
        },
        optional=QKV_BIASES,
    ),
    "qwen3moe": _QWEN_3,
    "qwen3vlmoe": replace(_QWEN_3, without_effect=PICTURES),
    "olmoe": Architecture(
        "olmoe",
        {**_QKV_NORMED, **experts(_MLP)},
        {
            **DECODER,
            **ROUTED,
            "intermediate_size": expert_width,
            "norm_topk_prob": False,
            "attention_bias": has_biases(),
        },
        without_effect=("feed_forward_length",),
    ),
    "granitemoe": Architecture(
        "granitemoe",
        {
            **{name: of for name, of in PAIRED.items() if ".mlp." not in name},
            **experts("model.layers.*.block_sparse_moe", router="router"),
        },
        {
            **DECODER,
            **GRANITE,
            "num_local_experts": expert_count,
            "num_experts_per_tok": _used,
            "intermediate_size": expert_width,
        },
        without_effect=("feed_forward_length",),
    ),
    "granitemoe(shared)": Architecture(
        "granitemoeshared",
        {
            **{name: of for name, of in PAIRED.items() if ".mlp." not in name},
            **experts("model.layers.*.block_sparse_moe", router="router"),
            "model.layers.*.shared_mlp.input_linear": _shared_input,
            "model.layers.*.shared_mlp.output_linear": "blk.*.ffn_down_shexp",
        },
        {
            **DECODER,
            **GRANITE,
            "num_local_experts": expert_count,
            "num_experts_per_tok": _used,
            "intermediate_size": expert_width,
            "shared_intermediate_size": _shared_width,
        },
        without_effect=("feed_forward_length",),
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        {
            **_WITHOUT_MLP,
            "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm",
            "model.layers.*.self_attn.sinks": "blk.*.attn_sinks.weight",
            f"{_MLP}.router": "blk.*.ffn_gate_inp",
            f"{_MLP}.experts.gate_up_proj": _oss_gate_up,
            f"{_MLP}.experts.gate_up_proj_bias": _oss_gate_up_bias,
            f"{_MLP}.experts.down_proj": _down_transposed,
            f"{_MLP}.experts.down_proj_bias": "blk.*.ffn_down_exps.bias",
        },
        {
            **DECODER,
            "num_local_experts": expert_count,
            "num_experts_per_tok": _used,
            "intermediate_size": expert_width,
            "sliding_window": lambda keys: keys.number("attention.sliding_window"),
            "layer_types": layer_types(2),
        },
        without_effect=("feed_forward_length",),
    ),
    "minimax-m2": Architecture(
        "minimax_m2",
        {**_QKV_NORMED, **experts(_MLP, bias="e_score_correction_bias")},
        {
            **DECODER,
            **ROUTED,
            "num_local_experts": expert_count,
            "intermediate_size": expert_width,
            "partial_rotary_factor": _partial,
            "gating": needs_gating(SIGMOID),
        },
        without_effect=("feed_forward_length",),
    ),
    "glm4moe": Architecture(
        "glm4_moe",
        {
            **_QKV_NORMED,
            **experts(_MLP, bias="gate.e_score_correction_bias", shared="shared_experts"),
            "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm",
        },
        {
            **DECODER,
            **DEEPSEEK_ROUTED,
            "partial_rotary_factor": _partial,
            "attention_bias": has_biases("attn_q", "attn_k", "attn_v"),
            "use_qk_norm": lambda keys: keys.has_tensor("blk.*.attn_q_norm.weight"),
            "gating": needs_gating(SIGMOID, default=SIGMOID),
        },
    ),
    "dots1": Architecture(
        "dots1",
        {
            **_QKV_NORMED,
            **experts(_MLP, bias="gate.e_score_correction_bias", shared="shared_experts"),
        },
        {
            **DECODER,
            **DEEPSEEK_ROUTED,
            "sliding_window": None,
            "layer_types": lambda keys: ["full_attention"] * keys.layers,
            "gating": needs_gating(SIGMOID),
        },
        optional=("exp_probs_b.bias",),
    ),
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe",
        {
            **LLAMA,
            **experts(_MLP, shared="shared_experts"),
            f"{_MLP}.gate.moe_statics.e_score_correction_bias": _one_row("blk.*.exp_probs_b.bias"),
        },
        {
            **DECODER,
            "moe_num_experts": expert_count,
            "moe_k": _used,
            "moe_intermediate_size": expert_width,
            "moe_num_shared_experts": lambda keys: (
                keys.number("expert_shared_count", 0) or _shared_width(keys) // expert_width(keys)
            ),
            "moe_layer_start_index": _dense_first,
            "moe_layer_end_index": lambda keys: keys.layers - 1,
            "moe_layer_interval": lambda keys: keys.number("interleave_moe_layer_step"),
        },
        optional=("exp_probs_b.bias",),
    ),
    "hunyuan-moe": Architecture(
        "hunyuan_v1_moe",
        {
            **LLAMA,
            **experts(_MLP, router="gate.wg", shared="shared_mlp"),
            "model.layers.*.self_attn.query_layernorm": "blk.*.attn_q_norm",
            "model.layers.*.self_attn.key_layernorm": "blk.*.attn_k_norm",
        },
        {
            **DECODER,
            "num_experts": expert_count,
            "moe_topk": _used,
            "intermediate_size": expert_width,
            "shared": _shared_width,
        },
        without_effect=("feed_forward_length",),
    ),
    "llama4": Architecture(
        "llama4_text",
        {
            **{name: of for name, of in LLAMA.items() if ".mlp." not in name},
            "model.layers.*.feed_forward.gate_proj": "blk.*.ffn_gate",
            "model.layers.*.feed_forward.up_proj": "blk.*.ffn_up",
            "model.layers.*.feed_forward.down_proj": "blk.*.ffn_down",
            **experts("model.layers.*.feed_forward", router="router", shared="shared_expert"),
            "model.layers.*.feed_forward.experts.gate_up_proj": _gate_up_transposed,
            "model.layers.*.feed_forward.experts.down_proj": _down_transposed,
        },
        {
            **DECODER,
            "intermediate_size": expert_width,
            "intermediate_size_mlp": lambda keys: keys.number("feed_forward_length", 0),
            "num_local_experts": expert_count,
            "num_experts_per_tok": _used,
            "interleave_moe_layer_step": lambda keys: keys.number("interleave_moe_layer_step"),
            "moe_layers": lambda keys: [at for at, one in enumerate(_has_experts(keys)) if one],
            "use_qk_norm": lambda keys: keys.number("expert_count") != 128,
            "no_rope_layers": _llama_4_rope,
            "attention_chunk_size": 8192,
            "layer_types": _types_of_llama_4,
            "attn_temperature_tuning": _is_chunked,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
    ),
    "exaone-moe": Architecture(
        "exaone_moe",
        {
            **_QKV_NORMED,
            **experts(_MLP, bias="gate.e_score_correction_bias", shared="shared_experts"),
        },
        {
            **DECODER,
            **ROUTED,
            "num_shared_experts": lambda keys: _shared_width(keys) // expert_width(keys),
            "first_k_dense_replace": _dense_first,
            "mlp_layer_types": _mlp_types,
            "norm_topk_prob": _is_normed,
            "routed_scaling_factor": _scale,
            "n_group": lambda keys: keys.number("expert_group_count", 0) or 1,
            "topk_group": lambda keys: keys.number("expert_group_used_count", 0) or 1,
            "sliding_window": lambda keys: keys.number("attention.sliding_window"),
            "layer_types": layer_types(4),
            "gating": needs_gating(SIGMOID),
        },
        optional=("exp_probs_b.bias",),
    ),
    "afmoe": Architecture(
        "afmoe",
        {
            **_QKV_NORMED,
            **experts(_MLP, router="router.gate", bias="expert_bias", shared="shared_experts"),
            "model.layers.*.self_attn.gate_proj": "blk.*.attn_gate",
            "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm",
            "model.layers.*.pre_mlp_layernorm": "blk.*.ffn_norm",
            "model.layers.*.post_mlp_layernorm": "blk.*.post_ffw_norm",
        },
        {
            **DECODER,
            **ROUTED,
            "num_dense_layers": _dense_first,
            "num_shared_experts": lambda keys: keys.number("expert_shared_count"),
            "route_scale": _scale,
            "route_norm": _must_be_normed,
            "sliding_window": lambda keys: keys.number("attention.sliding_window"),
            "layer_types": layer_types(4),
            "mup_enabled": True,
            "gating": needs_gating(SIGMOID, default=SIGMOID),
        },
        optional=("exp_probs_b.bias",),
    ),
    "hy_v3": Architecture(
        "hy_v3",
        {
            **_QKV_NORMED,
            **experts(_MLP, shared="shared_experts"),
            f"{_MLP}.e_score_correction_bias": either(
                "=blk.*.exp_probs_b", "blk.*.exp_probs_b.bias"
            ),
        },
        {
            **DECODER,
            **ROUTED,
            "num_shared_experts": lambda keys: _shared_width(keys) // expert_width(keys),
            "router_scaling_factor": _scale,
            "route_norm": _must_be_normed,
            "mlp_layer_types": _mlp_types,
            "gating": needs_gating(SIGMOID, default=SIGMOID),
        },
        without_effect=("leading_dense_block_count",),
    ),
    "laguna": Architecture(
        "laguna",
        {
            **_QKV_NORMED,
            # Layers may have different numbers of heads.
            **{
                f"model.layers.*.self_attn.{part}_proj": f"blk.*.attn_{part}"
                for part in ("q", "k", "v")
            },
            "model.layers.*.self_attn.g_proj": "blk.*.attn_gate",
            **experts(_MLP, bias="gate.e_score_correction_bias", shared="shared_experts"),
        },
        {
            **DECODER,
            **ROUTED,
            "num_attention_heads": lambda keys: max(keys.by_layer("attention.head_count")),
            "num_attention_heads_per_layer": lambda keys: keys.by_layer("attention.head_count"),
            "num_key_value_heads": lambda keys: keys.number("attention.head_count_kv"),
            "head_dim": _head_of_laguna,
            "partial_rotary_factor": lambda keys: {
                prefix.removesuffix("_"): 2 * len(rope.frequencies) / _head_of_laguna(keys)
                for prefix, rope in _ropes_of_laguna(keys).items()
            },
            "gating": _gate_of_laguna,
            "shared_expert_intermediate_size": _shared_width,
            "moe_routed_scaling_factor": _scale,
            "route_norm": _must_be_normed,
            "scoring": needs_gating(SIGMOID, default=SIGMOID),
            "mlp_layer_types": _mlp_types,
            "sliding_window": lambda keys: keys.number("attention.sliding_window", 0) or 1,
            "layer_types": _types_of_laguna,
        },
        ropes=_ropes_of_laguna,
        without_effect=("leading_dense_block_count",),
    ),
    "mimo2": Architecture(
        "mimo_v2_flash",
        {
            **LLAMA,
            "model.layers.*.self_attn.q_proj": _part_of_mimo("q"),
            "model.layers.*.self_attn.k_proj": _part_of_mimo("k"),
            "model.layers.*.self_attn.v_proj": _part_of_mimo("v"),
            "model.layers.*.self_attn.sinks": "blk.*.attn_sinks.weight",
            **experts(_MLP, bias="gate.e_score_correction_bias"),
        },
        {
            **{name: of for name, of in DECODER.items() if name != "head_dim"},
            "num_key_value_heads": _kv_heads_of_mimo,
            "head_dim": lambda keys: keys.number("attention.key_length"),
            "v_head_dim": lambda keys: keys.number("attention.value_length"),
            "partial_rotary_factor": lambda keys: (
                keys.number("rope.dimension_count") / keys.number("attention.key_length")
            ),
            "attention_value_scale": lambda keys: keys.real("attention.value_scale", 0.0) or 1.0,
            "n_routed_experts": expert_count,
            "num_experts_per_tok": _used,
            "moe_intermediate_size": expert_width,
            "norm_topk_prob": True,
            "routed_scaling_factor": _scale,
            "gating": needs_gating(SIGMOID, default=SIGMOID),
            "mlp_layer_types": _mlp_types,
            "sliding_window": lambda keys: keys.number("attention.sliding_window"),
            "layer_types": layer_types(0),
        },
        ropes=_ropes_of_mimo,
        optional=("exp_probs_b.bias",),
        without_effect=("expert_weights_norm",),
    ),
    "mellum": Architecture(
        "mellum",
        {**_QKV_NORMED, **experts(_MLP)},
        {
            **DECODER,
            "num_local_experts": expert_count,
            "num_experts_per_tok": _used,
            "moe_intermediate_size": expert_width,
            "norm_topk_prob": True,
            "mlp_layer_types": _mlp_types,
            "sliding_window": lambda keys: keys.number("attention.sliding_window"),
            "layer_types": layer_types(4),
        },
        ropes=two_ropes,
    ),
    "dbrx": Architecture(
        "dbrx",
        {
            "transformer.wte": "token_embd",
            "transformer.norm_f": "output_norm",
            "lm_head": "output",
            "transformer.blocks.*.norm_attn_norm.norm_1": "blk.*.attn_norm",
            "transformer.blocks.*.norm_attn_norm.norm_2": "blk.*.attn_output_norm",
            "transformer.blocks.*.norm_attn_norm.attn.Wqkv": fused,
            "transformer.blocks.*.norm_attn_norm.attn.out_proj": "blk.*.attn_output",
            "transformer.blocks.*.ffn.router.layer": "blk.*.ffn_gate_inp",
            "transformer.blocks.*.ffn.experts.mlp.w1": _rows_of_all("gate"),
            "transformer.blocks.*.ffn.experts.mlp.v1": _rows_of_all("up"),
            "transformer.blocks.*.ffn.experts.mlp.w2": _columns_of_all,
        },
        {
            "vocab_size": lambda keys: keys.vocabulary,
            "d_model": lambda keys: keys.width,
            "n_layers": lambda keys: keys.layers,
            "n_heads": lambda keys: keys.heads,
            "max_seq_len": lambda keys: keys.number("context_length"),
            "attn_config": lambda keys: {
                "kv_n_heads": keys.kv_heads,
                "clip_qkv": keys.real("attention.clamp_kqv"),
                "rope_theta": keys.real("rope.freq_base", 10_000.0),
            },
            "ffn_config": lambda keys: {
                "ffn_hidden_size": expert_width(keys),
                "moe_num_experts": expert_count(keys),
                "moe_top_k": _used(keys),
                "hidden_size": keys.width,
            },
            "tie_word_embeddings": lambda keys: keys.is_tied,
        },
        prepare=_norms_of_dbrx,
        without_effect=("feed_forward_length",),
    ),
}
