"""Rows of the table for decoders with recurrent states, with or without keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npu_llm.gguf.dense import PAIRED, QK_NORMED
from npu_llm.gguf.keys import Keys
from npu_llm.gguf.mixtures import GRANITE, ROUTED, expert_count, expert_width, row_of_gate
from npu_llm.gguf.ropes import Rope, read_rope
from npu_llm.gguf.rows import (
    DECODER,
    LLAMA,
    Architecture,
    At,
    Named,
    either,
    experts,
    heads,
    less_one,
    real,
)
from npu_llm.gguf.weights import Weight, joined

__all__ = ["STATES"]


def _negative_log(at: At) -> Weight:
    """Returns the logarithm of decays, which the file stores negated."""
    return at.weight("=blk.*.ssm_a").then(lambda values: np.log(-values))


def _convolution(name: str) -> Any:
    """Returns the weights of a convolution by channel: (channels, 1, kernel)."""

    def find(at: At) -> Weight:
        found = at.weight(name)
        return found if len(found.shape) == 1 else found.view(found.shape[0], 1, found.shape[-1])

    return find


def _lfm2_types(keys: Keys) -> list[str]:
    counts = keys.by_layer("attention.head_count_kv")
    return ["full_attention" if count else "conv" for count in counts]


_LFM2: Mapping[str, Named] = {
    "model.embed_tokens": "token_embd",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
    "model.layers.*.operator_norm": "blk.*.attn_norm",
    "model.layers.*.ffn_norm": "blk.*.ffn_norm",
    "model.layers.*.self_attn.q_proj": heads("q"),
    "model.layers.*.self_attn.k_proj": heads("k"),
    "model.layers.*.self_attn.v_proj": heads("v"),
    "model.layers.*.self_attn.out_proj": "blk.*.attn_output",
    "model.layers.*.self_attn.q_layernorm": "blk.*.attn_q_norm",
    "model.layers.*.self_attn.k_layernorm": "blk.*.attn_k_norm",
    "model.layers.*.conv.conv": _convolution("blk.*.shortconv.conv"),
    "model.layers.*.conv.in_proj": "blk.*.shortconv.in_proj",
    "model.layers.*.conv.out_proj": "blk.*.shortconv.out_proj",
    "model.layers.*.feed_forward.w1": "blk.*.ffn_gate",
    "model.layers.*.feed_forward.w3": "blk.*.ffn_up",
    "model.layers.*.feed_forward.w2": "blk.*.ffn_down",
}
_LFM2_CONFIG: Mapping[str, Any] = {
    **DECODER,
    "num_key_value_heads": lambda keys: max(keys.by_layer("attention.head_count_kv")),
    "norm_eps": real("attention.layer_norm_rms_epsilon"),
    "conv_L_cache": lambda keys: keys.number("shortconv.l_cache"),
    "layer_types": _lfm2_types,
}


def _linear_heads(keys: Keys) -> tuple[int, int, int]:
    """Returns the number of key heads, value heads per key head, and rows per value head."""
    groups, rank = keys.number("ssm.group_count"), keys.number("ssm.time_step_rank")
    inner = keys.number("ssm.inner_size")
    if not groups or rank % groups or not rank or inner % rank:
        raise keys.refuse("must have ssm.group_count, time_step_rank and inner_size that divide")
    return groups, rank // groups, inner // rank


def _grouped(keys: Keys, size: int) -> np.ndarray:
    """Returns the order that groups value heads by key head."""
    groups, each, _ = _linear_heads(keys)
    return np.arange(groups * each * size).reshape(each, groups, size).swapaxes(0, 1).reshape(-1)


def _by_value_head(name: str, *, is_one_row: bool = False) -> Any:
    def find(at: At) -> Weight:
        found = at.weight(name)
        order = _grouped(at.keys, 1 if is_one_row else _linear_heads(at.keys)[2])
        return found.take(order) if len(order) == found.shape[0] else found

    return find


def _values_last(name: str) -> Any:
    """Returns rows of queries and keys unchanged, with those of values grouped by key head."""

    def find(at: At) -> Weight:
        found = at.weight(name)
        order = _grouped(at.keys, _linear_heads(at.keys)[2])
        before = found.shape[0] - len(order)
        if before < 0:
            return found
        taken = found.take(np.concatenate([np.arange(before), before + order]))
        return taken.view(taken.shape[0], 1, taken.shape[-1]) if "conv" in name else taken

    return find


def _columns_by_value_head(at: At) -> Weight:
    found = at.weight("blk.*.ssm_out")
    _, each, size = _linear_heads(at.keys)
    order = _grouped(at.keys, size)
    if each == 1 or found.shape[-1] != len(order):
        return found
    return found.then(lambda values: values[:, order])


def _decays_by_value_head(at: At) -> Weight:
    found: Weight = _by_value_head("=blk.*.ssm_a", is_one_row=True)(at)
    return found.then(lambda values: np.log(-values))


def _linear_types(keys: Keys) -> list[str]:
    recurrent = keys.get("attention.recurrent_layers", None)
    interval = keys.number("full_attention_interval", 4)
    if recurrent is None:
        recurrent = [(layer + 1) % interval != 0 for layer in range(keys.layers)]
    return ["linear_attention" if one else "full_attention" for one in recurrent[: keys.layers]]


def _qwen_3_5_rope(keys: Keys) -> Mapping[str, Rope]:
    keys.get("rope.dimension_sections")
    return {"": read_rope(keys)}


_QWEN_3_5: Mapping[str, Named] = {
    **LLAMA,
    **QK_NORMED,
    "model.norm": less_one("output_norm"),
    "model.layers.*.input_layernorm": less_one("blk.*.attn_norm"),
    "model.layers.*.post_attention_layernorm": less_one("blk.*.post_attention_norm"),
    "model.layers.*.self_attn.q_proj": "blk.*.attn_q",
    "model.layers.*.self_attn.q_norm": less_one("blk.*.attn_q_norm"),
    "model.layers.*.self_attn.k_norm": less_one("blk.*.attn_k_norm"),
    "model.layers.*.linear_attn.dt_bias": _by_value_head("blk.*.ssm_dt.bias", is_one_row=True),
    "model.layers.*.linear_attn.A_log": _decays_by_value_head,
    "model.layers.*.linear_attn.conv1d": _values_last("blk.*.ssm_conv1d"),
    "model.layers.*.linear_attn.norm": "blk.*.ssm_norm",
    "model.layers.*.linear_attn.out_proj": _columns_by_value_head,
    "model.layers.*.linear_attn.in_proj_qkv": _values_last("blk.*.attn_qkv"),
    "model.layers.*.linear_attn.in_proj_z": _by_value_head("blk.*.attn_gate"),
    "model.layers.*.linear_attn.in_proj_b": _by_value_head("blk.*.ssm_beta", is_one_row=True),
    "model.layers.*.linear_attn.in_proj_a": _by_value_head("blk.*.ssm_alpha", is_one_row=True),
}
_QWEN_3_5_CONFIG: Mapping[str, Any] = {
    **DECODER,
    "partial_rotary_factor": lambda keys: keys.rotated / keys.head_dim,
    "layer_types": _linear_types,
    "linear_conv_kernel_dim": lambda keys: keys.number("ssm.conv_kernel"),
    "linear_key_head_dim": lambda keys: keys.number("ssm.state_size"),
    "linear_value_head_dim": lambda keys: _linear_heads(keys)[2],
    "linear_num_key_heads": lambda keys: keys.number("ssm.group_count"),
    "linear_num_value_heads": lambda keys: keys.number("ssm.time_step_rank"),
}


_QWEN_EXPERTS: Mapping[str, Named] = {
    **_QWEN_3_5,
    **experts("model.layers.*.mlp", shared="shared_expert"),
    "model.layers.*.mlp.shared_expert_gate": row_of_gate,
}
_QWEN_EXPERTS_CONFIG: Mapping[str, Any] = {
    **_QWEN_3_5_CONFIG,
    **ROUTED,
    "shared_expert_intermediate_size": lambda keys: keys.size(
        "blk.*.ffn_up_shexp.weight", 0, "expert_shared_feed_forward_length"
    ),
}


def _sections(keys: Keys) -> dict[str, Any]:
    sections = keys.get("rope.dimension_sections")
    return {"mrope_section": sections[:3], "mrope_interleaved": True}


def _by_key_head(at: At) -> Weight:
    """Returns rows of queries, keys, values and gates per key head."""
    groups, each, size = _linear_heads(at.keys)
    state = at.keys.number("ssm.state_size")
    both = joined([at.weight("blk.*.attn_qkv"), at.weight("blk.*.attn_gate")])
    parts = [groups * state, groups * state, groups * each * size, groups * each * size]
    if sum(parts) != both.shape[0]:
        return both
    starts = np.cumsum([0, *parts[:-1]])
    rows = [
        (start + np.arange(count)).reshape(groups, -1)
        for start, count in zip(starts, parts, strict=True)
    ]
    return both.take(np.concatenate(rows, 1).reshape(-1))


def _flat(name: str) -> Any:
    """Returns a tensor as a vector."""

    def find(at: At) -> Weight:
        found = at.weight(name)
        return found if len(found.shape) == 1 else found.view(found.numel())

    return find


def _flat_negative_log(at: At) -> Weight:
    found = at.weight("=blk.*.ssm_a")
    return found.then(lambda values: np.log(-values).reshape(-1), (found.numel(),))


def _mamba_2(module: str) -> Mapping[str, Named]:
    return {
        f"{module}.dt_bias": "blk.*.ssm_dt.bias",
        f"{module}.A_log": _flat_negative_log,
        f"{module}.D": _flat("=blk.*.ssm_d"),
        f"{module}.conv1d": _convolution("blk.*.ssm_conv1d"),
        f"{module}.in_proj": "blk.*.ssm_in",
        f"{module}.norm": _flat("blk.*.ssm_norm.weight"),
        f"{module}.out_proj": "blk.*.ssm_out",
    }


def _shared_or_dense(at: At) -> Weight:
    kind = "_shexp" if at.has("blk.*.ffn_up_shexp") else ""
    return joined([at.weight(f"blk.*.ffn_{part}{kind}") for part in ("gate", "up")])


_MAMBA: Mapping[str, Named] = {
    "model.layers.*.mamba.A_log": _negative_log,
    "model.layers.*.mamba.D": "=blk.*.ssm_d",
    "model.layers.*.mamba.conv1d": _convolution("blk.*.ssm_conv1d"),
    "model.layers.*.mamba.in_proj": "blk.*.ssm_in",
    "model.layers.*.mamba.x_proj": "blk.*.ssm_x",
    "model.layers.*.mamba.dt_proj": "blk.*.ssm_dt",
    "model.layers.*.mamba.out_proj": "blk.*.ssm_out",
}


def _attends(keys: Keys) -> list[bool]:
    return [count > 0 for count in keys.by_layer("attention.head_count_kv")]


def _is_routed(keys: Keys) -> list[bool]:
    return [f"blk.{layer}.ffn_gate_inp.weight" in keys.file.tensors for layer in range(keys.layers)]


def _period(keys: Keys, chosen: list[bool]) -> tuple[int, int]:
    """Returns the period of the chosen layers, and the index of the first one."""
    places = [layer for layer, one in enumerate(chosen) if one]
    if not places:
        return len(chosen) + 1, len(chosen)
    period = places[1] - places[0] if len(places) > 1 else len(chosen)
    if chosen != [layer % period == places[0] % period for layer in range(len(chosen))]:
        raise keys.refuse(f"must have layers of each kind at equal distances, got {places}")
    return period, places[0]


def _types_of_nemotron(keys: Keys) -> list[str]:
    """Returns the kind of each layer, determined by its tensors."""
    kinds = (
        ("ssm_in", "linear_attention"),
        ("attn_output", "full_attention"),
        ("ffn_gate_inp", "moe"),
        ("ffn_up", "mlp"),
    )
    found = []
    for layer in range(keys.layers):
        names = [kind for name, kind in kinds if keys.has_tensor(f"blk.{layer}.{name}.weight")]
        if not names:
            raise keys.refuse(
                f"must have states, attention or a feed-forward part in layer {layer}"
            )
        found.append(names[0])
    return found


def _epsilon_of_nemotron(keys: Keys) -> float:
    other = keys.get("attention.layer_norm_epsilon", None)
    return keys.real("attention.layer_norm_rms_epsilon", *([] if other is None else [other]))


_MIXER = "model.layers.*.mixer"
_NEMOTRON_H = Architecture(
    "nemotron_h",
    {
        "model.embeddings": "token_embd",
        "model.norm_f": "output_norm",
        "lm_head": "output",
        "model.layers.*.norm": "blk.*.attn_norm",
        **_mamba_2(_MIXER),
        f"{_MIXER}.q_proj": heads("q"),
        f"{_MIXER}.k_proj": heads("k"),
        f"{_MIXER}.v_proj": heads("v"),
        f"{_MIXER}.o_proj": "blk.*.attn_output",
        f"{_MIXER}.up_proj": "blk.*.ffn_up",
        f"{_MIXER}.down_proj": "blk.*.ffn_down",
        f"{_MIXER}.gate": "blk.*.ffn_gate_inp",
        f"{_MIXER}.gate.e_score_correction_bias": "blk.*.exp_probs_b.bias",
        f"{_MIXER}.experts.up_proj": "blk.*.ffn_up_exps.weight",
        f"{_MIXER}.experts.down_proj": "blk.*.ffn_down_exps.weight",
        f"{_MIXER}.shared_experts.up_proj": "blk.*.ffn_up_shexp",
        f"{_MIXER}.shared_experts.down_proj": "blk.*.ffn_down_shexp",
        f"{_MIXER}.fc1_latent_proj": "blk.*.ffn_latent_down",
        f"{_MIXER}.fc2_latent_proj": "blk.*.ffn_latent_up",
    },
    {
        **{name: of for name, of in DECODER.items() if name != "rms_norm_eps"},
        "layers_block_type": _types_of_nemotron,
        "num_hidden_layers": lambda keys: keys.layers,
        "num_attention_heads": lambda keys: max(keys.by_layer("attention.head_count")),
        "num_key_value_heads": lambda keys: max(keys.by_layer("attention.head_count_kv")) or 1,
        "head_dim": lambda keys: keys.number("attention.key_length"),
        "value_dim": lambda keys: keys.number("attention.value_length"),
        "layer_norm_epsilon": _epsilon_of_nemotron,
        "intermediate_size": lambda keys: max(keys.by_layer("feed_forward_length")) or 1,
        # llama.cpp does not limit time steps, and neither do the models' configs.
        "time_step_min": 0.0,
        "mamba_num_heads": lambda keys: keys.number("ssm.time_step_rank"),
        "mamba_head_dim": lambda keys: _linear_heads(keys)[2],
        "n_groups": lambda keys: keys.number("ssm.group_count"),
        "ssm_state_size": lambda keys: keys.number("ssm.state_size"),
        "conv_kernel": lambda keys: keys.number("ssm.conv_kernel"),
        "n_routed_experts": lambda keys: keys.number("expert_count", 0) or 1,
        "num_experts_per_tok": lambda keys: keys.number("expert_used_count", 0) or 1,
        "moe_intermediate_size": lambda keys: keys.size(
            "blk.*.ffn_up_exps.weight", 1, "expert_feed_forward_length", default=1
        ),
        "moe_shared_expert_intermediate_size": lambda keys: keys.size(
            "blk.*.ffn_up_shexp.weight", 0, "expert_shared_feed_forward_length", default=1
        ),
        "moe_latent_size": lambda keys: keys.number("moe_latent_size", 0) or None,
        "routed_scaling_factor": lambda keys: keys.real("expert_weights_scale", 0.0) or 1.0,
        "norm_topk_prob": lambda keys: bool(keys.get("expert_weights_norm", False)),
        "n_group": lambda keys: keys.number("expert_group_count", 0) or 1,
        "topk_group": lambda keys: keys.number("expert_group_used_count", 0) or 1,
    },
    ropes=None,
    without_effect=("rope.dimension_count", "rope.freq_base", "expert_gating_func"),
)


STATES: Mapping[str, Architecture] = {
    "lfm2": Architecture("lfm2", _LFM2, {**_LFM2_CONFIG, "block_auto_adjust_ff_dim": False}),
    "lfm2moe": Architecture(
        "lfm2_moe",
        {**_LFM2, **experts("model.layers.*.feed_forward", bias="expert_bias")},
        {
            **_LFM2_CONFIG,
            "num_dense_layers": lambda keys: keys.number("leading_dense_block_count", 0),
            "num_experts": expert_count,
            "num_experts_per_tok": lambda keys: keys.number("expert_used_count"),
            "moe_intermediate_size": expert_width,
            "use_expert_bias": True,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "gating": lambda keys: keys.gating(2),
        },
    ),
    "mamba": Architecture(
        "mamba",
        {
            "backbone.embeddings": "token_embd",
            "backbone.norm_f": "output_norm",
            "lm_head": "output",
            "backbone.layers.*.norm": "blk.*.attn_norm",
            "backbone.layers.*.mixer.A_log": _negative_log,
            "backbone.layers.*.mixer.D": "=blk.*.ssm_d",
            "backbone.layers.*.mixer.conv1d": _convolution("blk.*.ssm_conv1d"),
            "backbone.layers.*.mixer.in_proj": "blk.*.ssm_in",
            "backbone.layers.*.mixer.x_proj": "blk.*.ssm_x",
            "backbone.layers.*.mixer.dt_proj": "blk.*.ssm_dt",
            "backbone.layers.*.mixer.out_proj": "blk.*.ssm_out",
        },
        {
            "vocab_size": lambda keys: keys.vocabulary,
            "hidden_size": lambda keys: keys.width,
            "num_hidden_layers": lambda keys: keys.layers,
            "state_size": lambda keys: keys.number("ssm.state_size"),
            "conv_kernel": lambda keys: keys.number("ssm.conv_kernel"),
            "intermediate_size": lambda keys: keys.number("ssm.inner_size"),
            "expand": lambda keys: keys.number("ssm.inner_size") // keys.width,
            "time_step_rank": lambda keys: keys.number("ssm.time_step_rank"),
            "layer_norm_epsilon": real("attention.layer_norm_rms_epsilon"),
            "residual_in_fp32": True,
            "tie_word_embeddings": lambda keys: keys.is_tied,
        },
        ropes=None,
        without_effect=("context_length", "feed_forward_length", "attention.head_count"),
    ),
    "qwen35": Architecture(
        "qwen3_5_text",
        _QWEN_3_5,
        _QWEN_3_5_CONFIG,
        ropes=_qwen_3_5_rope,
        rope_extras=_sections,
    ),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        _QWEN_EXPERTS,
        _QWEN_EXPERTS_CONFIG,
        ropes=_qwen_3_5_rope,
        rope_extras=_sections,
        without_effect=("feed_forward_length",),
    ),
    "qwen3next": Architecture(
        "qwen3_next",
        {
            **_QWEN_EXPERTS,
            "model.layers.*.linear_attn.in_proj_qkvz": _by_key_head,
            "model.layers.*.linear_attn.in_proj_ba": "blk.*.ssm_ba",
            "model.layers.*.linear_attn.dt_bias": "blk.*.ssm_dt.bias",
            "model.layers.*.linear_attn.A_log": _negative_log,
            "model.layers.*.linear_attn.conv1d": _convolution("blk.*.ssm_conv1d"),
            "model.layers.*.linear_attn.out_proj": "blk.*.ssm_out",
        },
        {
            **_QWEN_EXPERTS_CONFIG,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        without_effect=("feed_forward_length",),
    ),
    "mamba2": Architecture(
        "mamba2",
        {
            "backbone.embeddings": "token_embd",
            "backbone.norm_f": "output_norm",
            "lm_head": "output",
            "backbone.layers.*.norm": "blk.*.attn_norm",
            **_mamba_2("backbone.layers.*.mixer"),
        },
        {
            "vocab_size": lambda keys: keys.vocabulary,
            "hidden_size": lambda keys: keys.width,
            "num_hidden_layers": lambda keys: keys.layers,
            "num_heads": lambda keys: keys.number("ssm.time_step_rank"),
            "head_dim": lambda keys: _linear_heads(keys)[2],
            "state_size": lambda keys: keys.number("ssm.state_size"),
            "n_groups": lambda keys: keys.number("ssm.group_count"),
            "conv_kernel": lambda keys: keys.number("ssm.conv_kernel"),
            "expand": lambda keys: keys.number("ssm.inner_size") // keys.width,
            "layer_norm_epsilon": real("attention.layer_norm_rms_epsilon"),
            "residual_in_fp32": True,
            "tie_word_embeddings": lambda keys: keys.is_tied,
        },
        ropes=None,
        without_effect=("context_length", "feed_forward_length", "attention.head_count"),
    ),
    "jamba": Architecture(
        "jamba",
        {
            **{name: of for name, of in LLAMA.items() if ".mlp." not in name},
            "model.final_layernorm": "output_norm",
            "model.layers.*.pre_ff_layernorm": "blk.*.ffn_norm",
            "model.layers.*.feed_forward.gate_proj": "blk.*.ffn_gate",
            "model.layers.*.feed_forward.up_proj": "blk.*.ffn_up",
            "model.layers.*.feed_forward.down_proj": "blk.*.ffn_down",
            **experts("model.layers.*.feed_forward", router="router"),
            **_MAMBA,
            "model.layers.*.mamba.dt_layernorm": "blk.*.ssm_dt_norm",
            "model.layers.*.mamba.b_layernorm": "blk.*.ssm_b_norm",
            "model.layers.*.mamba.c_layernorm": "blk.*.ssm_c_norm",
        },
        {
            **DECODER,
            "num_key_value_heads": lambda keys: max(keys.by_layer("attention.head_count_kv")),
            "intermediate_size": lambda keys: max(keys.by_layer("feed_forward_length")),
            "num_experts": lambda keys: keys.number("expert_count", 0) or 1,
            "num_experts_per_tok": lambda keys: keys.number("expert_used_count", 0) or 1,
            "attn_layer_period": lambda keys: _period(keys, _attends(keys))[0],
            "attn_layer_offset": lambda keys: _period(keys, _attends(keys))[1],
            "expert_layer_period": lambda keys: _period(keys, _is_routed(keys))[0],
            "expert_layer_offset": lambda keys: _period(keys, _is_routed(keys))[1],
            "mamba_d_state": lambda keys: keys.number("ssm.state_size"),
            "mamba_d_conv": lambda keys: keys.number("ssm.conv_kernel"),
            "mamba_expand": lambda keys: keys.number("ssm.inner_size") // keys.width,
            "mamba_dt_rank": lambda keys: keys.number("ssm.time_step_rank"),
            "use_mamba_kernels": False,
        },
        ropes=None,
        without_effect=("rope.freq_base", "rope.dimension_count"),
    ),
    "falcon-h1": Architecture(
        "falcon_h1",
        {
            **{name: of for name, of in LLAMA.items() if ".mlp." not in name},
            "model.final_layernorm": "output_norm",
            "model.layers.*.pre_ff_layernorm": either("=blk.*.ffn_norm", "blk.*.ffn_norm"),
            "model.layers.*.feed_forward.gate_proj": "blk.*.ffn_gate",
            "model.layers.*.feed_forward.up_proj": "blk.*.ffn_up",
            "model.layers.*.feed_forward.down_proj": "blk.*.ffn_down",
            **_mamba_2("model.layers.*.mamba"),
        },
        {
            **DECODER,
            # The file's weights are already multiplied.
            **dict.fromkeys(
                (
                    "attention_in_multiplier",
                    "attention_out_multiplier",
                    "embedding_multiplier",
                    "key_multiplier",
                    "lm_head_multiplier",
                    "ssm_in_multiplier",
                    "ssm_out_multiplier",
                ),
                1.0,
            ),
            "mlp_multipliers": lambda keys: [1.0, 1.0],
            "ssm_multipliers": lambda keys: [1.0] * 5,
            "mamba_d_ssm": lambda keys: keys.number("ssm.inner_size"),
            "mamba_n_heads": lambda keys: keys.number("ssm.time_step_rank"),
            "mamba_d_head": lambda keys: _linear_heads(keys)[2],
            "mamba_n_groups": lambda keys: keys.number("ssm.group_count"),
            "mamba_d_state": lambda keys: keys.number("ssm.state_size"),
            "mamba_d_conv": lambda keys: keys.number("ssm.conv_kernel"),
            "mamba_rms_norm": lambda keys: keys.has_tensor("blk.*.ssm_norm.weight"),
            "mamba_norm_before_gate": False,
        },
    ),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
    "granitehybrid": Architecture(
        "granitemoehybrid",
        {
            **{name: of for name, of in PAIRED.items() if ".mlp." not in name},
            **experts("model.layers.*.block_sparse_moe", router="router"),
            "model.layers.*.shared_mlp.input_linear": _shared_or_dense,
            "model.layers.*.shared_mlp.output_linear": either(
                "blk.*.ffn_down_shexp", "blk.*.ffn_down"
            ),
            **_mamba_2("model.layers.*.mamba"),
        },
        {
            **DECODER,
            **GRANITE,
            "num_key_value_heads": lambda keys: max(keys.by_layer("attention.head_count_kv")),
            "layer_types": lambda keys: ["attention" if one else "mamba" for one in _attends(keys)],
            "logits_scaling": lambda keys: keys.real("logit_scale", 0.0) or 1.0,
            "num_local_experts": lambda keys: keys.number("expert_count", 0),
            "num_experts_per_tok": lambda keys: keys.number("expert_used_count", 0),
            "intermediate_size": lambda keys: keys.number("feed_forward_length"),
            "shared_intermediate_size": lambda keys: keys.size(
                "blk.*.ffn_up_shexp.weight", 0, "", default=keys.number("feed_forward_length")
            ),
            "position_embedding_type": lambda keys: (
                "rope" if keys.get("rope.scaling.finetuned", True) else None
            ),
            "mamba_n_heads": lambda keys: keys.number("ssm.time_step_rank"),
            "mamba_d_head": lambda keys: _linear_heads(keys)[2],
            "mamba_n_groups": lambda keys: keys.number("ssm.group_count"),
            "mamba_d_state": lambda keys: keys.number("ssm.state_size"),
            "mamba_d_conv": lambda keys: keys.number("ssm.conv_kernel"),
            "mamba_expand": lambda keys: keys.number("ssm.inner_size") // keys.width,
        },
    ),
}
