"""Rows of the table for dense decoders."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from npu_llm.gguf.keys import Keys
from npu_llm.gguf.ropes import Rope, read_rope
from npu_llm.gguf.rows import (
    DECODER,
    LAYER_NORMED,
    LLAMA,
    Architecture,
    At,
    Named,
    constant,
    fused,
    gate_and_up,
    gates_and_ups,
    heads,
    less_one,
    one_rope,
    per_head,
    real,
    transposed,
)
from npu_llm.gguf.weights import Weight

__all__ = ["DENSE", "PAIRED", "PICTURES", "QKV_BIASES", "QK_NORMED", "has_biases", "layer_types"]

_QK = {
    "model.layers.*.self_attn.q_proj": heads("q", paired=True),
    "model.layers.*.self_attn.k_proj": heads("k", paired=True),
}
# llama.cpp's "normal" rotary embedding, for classes that rotate halves.
PAIRED: Mapping[str, Named] = {**LLAMA, **_QK}
QK_NORMED: Mapping[str, Named] = {
    "model.layers.*.self_attn.q_norm": "blk.*.attn_q_norm",
    "model.layers.*.self_attn.k_norm": "blk.*.attn_k_norm",
}
QKV_BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias")
_PROJECTIONS = ("attn_q", "attn_k", "attn_v", "attn_output")
_FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")


def has_biases(*names: str) -> Any:
    """Returns whether layers have all of some biases; by default those of attention."""
    chosen = names or _PROJECTIONS

    def find(keys: Keys) -> bool:
        return all(keys.has_tensor(f"blk.*.{name}.bias") for name in chosen)

    return find


def layer_types(period: int, *, dense_first: bool = False) -> Any:
    """Returns which layers have a sliding window, as in ggml.

    Args:
        period: number of layers in a cycle, if the metadata does not contain it.
        dense_first: whether the first layer of a cycle, instead of the last, has no window.
    """

    def find(keys: Keys) -> list[str]:
        pattern = keys.get("attention.sliding_window_pattern", period)
        if isinstance(pattern, list):
            windowed = [bool(one) for one in pattern[: keys.layers]]
            windowed += [False] * (keys.layers - len(windowed))
        else:
            full = 0 if dense_first else pattern - 1
            windowed = [not pattern or at % pattern != full for at in range(keys.layers)]
        return ["sliding_attention" if one else "full_attention" for one in windowed]

    return find


def _scale_of_gemma(layers_of_27b: int) -> Any:
    def find(keys: Keys) -> int:
        is_27b = keys.number("block_count") == layers_of_27b
        return keys.width // keys.heads if is_27b else keys.head_dim

    return find


def _one_base(keys: Keys) -> Mapping[str, Rope]:
    """Returns the rotary positions of a class with equal rotation in all layers."""
    rope = read_rope(keys)
    if keys.real("rope.freq_base_swa", rope.base) != rope.base:
        raise keys.refuse("must have rope.freq_base_swa equal to rope.freq_base")
    return {"": rope}


def two_ropes(keys: Keys) -> Mapping[str, Rope]:
    """Returns the unscaled rotary positions of layers with a window, and those of others."""
    full = _one_base(keys)[""]
    return {
        "full_attention_": full,
        "sliding_attention_": read_rope(keys, is_scaled=False, factors=None),
    }


def _ropes_of_gemma_3(keys: Keys) -> Mapping[str, Rope]:
    base = keys.real("rope.freq_base_swa", 10_000.0)
    return {
        "full_attention_": read_rope(keys),
        "sliding_attention_": read_rope(keys, base=base, is_scaled=False, factors=None),
    }


_GEMMA: Mapping[str, Named] = {
    **LLAMA,
    "model.norm": less_one("output_norm"),
    "model.layers.*.input_layernorm": less_one("blk.*.attn_norm"),
    "model.layers.*.post_attention_layernorm": less_one("blk.*.ffn_norm"),
}
_GEMMA_2: Mapping[str, Named] = {
    **_GEMMA,
    "model.layers.*.post_attention_layernorm": less_one("blk.*.post_attention_norm"),
    "model.layers.*.pre_feedforward_layernorm": less_one("blk.*.ffn_norm"),
    "model.layers.*.post_feedforward_layernorm": less_one("blk.*.post_ffw_norm"),
}
_POST_NORMED: Mapping[str, Named] = {
    **{name: of for name, of in LLAMA.items() if not name.endswith("input_layernorm")},
    **QK_NORMED,
    "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm",
    "model.layers.*.post_feedforward_layernorm": "blk.*.post_ffw_norm",
}
_COHERE: Mapping[str, Named] = {
    name: of for name, of in LLAMA.items() if "post_attention_layernorm" not in name
}
_GLM: Mapping[str, Named] = {
    **{name: of for name, of in LLAMA.items() if "gate_proj" not in name and "up_proj" not in name},
    "model.layers.*.mlp.gate_up_proj": gate_and_up,
}
# Named like GPT-2's modules, in separate classes.
_GPT = {
    "attn_norm": "ln_1", "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
_GPT_EMBEDDINGS = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
}
_GPT_CONFIG: Mapping[str, Any] = {
    "vocab_size": lambda keys: keys.vocabulary,
    "n_embd": lambda keys: keys.width,
    "n_layer": lambda keys: keys.layers,
    "n_head": lambda keys: keys.heads,
    "n_inner": lambda keys: keys.number("feed_forward_length"),
    "layer_norm_epsilon": real("attention.layer_norm_epsilon"),
    "tie_word_embeddings": lambda keys: keys.is_tied,
}
_DROPS = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


# Some classes create a mask of its square.
_MOST_POSITIONS = 1 << 15


def _positions(keys: Keys) -> int:
    """Returns the number of position embeddings, which must match the metadata."""
    rows = keys.tensor("position_embd.weight").shape[0]
    if keys.number("context_length") != rows:
        raise keys.refuse(f"must have a context_length of {rows}, as position_embd.weight has")
    if rows > _MOST_POSITIONS:
        raise keys.refuse(f"must have at most {_MOST_POSITIONS} positions, got {rows}")
    return rows


def _by_head(at: At) -> Weight:
    """Concatenates each head's queries, keys and values."""
    keys = at.keys
    order = np.arange(3 * keys.width).reshape(3, keys.heads, keys.width // keys.heads)
    found = fused(at)
    return (
        found.take(order.swapaxes(0, 1).reshape(-1))
        if len(order) * keys.width == found.shape[0]
        else found
    )


def _by_group(at: At) -> Weight:
    """Returns the queries, key and value per key head; unchanged for one key head."""
    keys, found = at.keys, fused(at)
    if keys.kv_heads == 1:
        return found
    size, per_key = keys.width // keys.heads, keys.heads // keys.kv_heads
    rows = np.arange(found.shape[0]).reshape(-1, size)
    queries = rows[: keys.heads].reshape(keys.kv_heads, per_key, size)
    both = rows[keys.heads :].reshape(2, keys.kv_heads, 1, size)
    return found.take(np.concatenate([queries, *both], 1).reshape(-1))


def _starcoder_qkv(at: At) -> Weight:
    return fused(at) if at.keys.kv_heads == 1 else _by_head(at)


def _is_new_falcon(keys: Keys) -> bool:
    return keys.kv_heads > 1 or keys.has_tensor("blk.*.attn_norm_2.weight")


def _falcon_norm(mine: str) -> Any:
    def find(at: At) -> Weight:
        has_two = at.has("blk.*.attn_norm_2")
        return at.weight(
            "blk.*.attn_norm_2" if mine == "attention" and has_two else "blk.*.attn_norm"
        )

    return find


def _partial(keys: Keys) -> float:
    return keys.rotated / keys.head_dim


def _has_parallel_residual(keys: Keys) -> bool:
    keys.get("use_parallel_residual", None)  # llama.cpp uses the norm
    return not keys.has_tensor("blk.*.ffn_norm.weight")


def _norms_of_olmo(model: Any, keys: Keys) -> None:
    """Sets the constant of norms without weights, which is hard-coded in the class."""
    eps = keys.real("attention.layer_norm_epsilon")
    plain = {name for name, one in model.named_modules() if type(one).__name__ == "OlmoLayerNorm"}
    for name in plain if eps != 1e-5 else ():
        parent, _, leaf = name.rpartition(".")
        norm = nn.LayerNorm(keys.width, eps=eps, elementwise_affine=False)
        setattr(model.get_submodule(parent), leaf, norm)


def _xielu(key: str) -> Any:
    def find(at: At) -> np.ndarray:
        values = at.keys.file.metadata.get(key)
        if values is None:
            raise at.keys.refuse(f"must have {key}")
        value = values[at.layer] if isinstance(values, list) else values
        shape = (1,) if "alpha" in key else ()
        return np.full(shape, value, np.float32)

    return constant(find)


def _granite_rope(keys: Keys) -> Mapping[str, Rope]:
    rope = read_rope(keys)
    if not keys.get("rope.scaling.finetuned", True):  # a switch in llama.cpp
        rope.frequencies.zero_()
    return {"": rope}


def _window_of_exaone(keys: Keys) -> int | None:
    window = keys.number("attention.sliding_window", 4096)
    return window if keys.layers == 64 else None


def _types_of_exaone(keys: Keys) -> list[str]:
    types: list[str] = layer_types(4)(keys)
    return types if keys.layers == 64 else ["full_attention"] * keys.layers


def _window(keys: Keys) -> int | None:
    return keys.number("attention.sliding_window", 0) or None


def _types_of_gemma_3(keys: Keys) -> list[str]:
    types: list[str] = layer_types(6)(keys)
    return types if _window(keys) else ["full_attention"] * keys.layers


def _head_of_gemma_4(keys: Keys, kind: str = "") -> int:
    size = keys.number(f"attention.key_length{kind}")
    if keys.number(f"attention.value_length{kind}", size) != size:
        raise keys.refuse(f"must have attention.value_length{kind} equal to key_length")
    return size


def _kv_of_gemma_4(keys: Keys, kind: str) -> int:
    """Returns the number of key heads in layers of one type."""
    types = layer_types(6)(keys)
    counts = keys.by_layer("attention.head_count_kv", keys.heads)
    found = {count for count, one in zip(counts, types, strict=True) if one == kind}
    if len(found) > 1:
        raise keys.refuse(
            f"must have one attention.head_count_kv for layers of a type, got {found}"
        )
    return int(found.pop()) if found else keys.heads


def _full_layers_of_gemma_4(keys: Keys) -> dict[int, dict[str, int]]:
    kv_heads = _kv_of_gemma_4(keys, "full_attention")
    own = {"head_dim": _head_of_gemma_4(keys), "num_key_value_heads": kv_heads}
    types = layer_types(6)(keys)
    return {layer: own for layer, one in enumerate(types) if one == "full_attention"}


def _ropes_of_gemma_4(keys: Keys) -> Mapping[str, Rope]:
    windowed = keys.number("rope.dimension_count_swa", _head_of_gemma_4(keys, "_swa"))
    base = keys.real("rope.freq_base_swa", 10_000.0)
    rotated = keys.number("rope.dimension_count", _head_of_gemma_4(keys))
    return {
        # transformers computes no factors for heads of several sizes.
        "full_attention_": replace(read_rope(keys, rotated=rotated), factors=None),
        "sliding_attention_": read_rope(
            keys, rotated=windowed, base=base, is_scaled=False, factors=None
        ),
    }


def _of_stream(name: str) -> Any:
    """Returns the matrix of the stream with the index in the name, from a tensor of several."""

    def find(at: At) -> Weight:
        found = at.weight(name)
        index = at.numbers[0]
        return (
            found.rows(index, index + 1).view(*found.shape[1:]) if len(found.shape) > 2 else found
        )

    return find


# Number of layers with keys and values, hard-coded in llama.cpp.
_OWN_KEYS_OF_GEMMA_3N = 20


def _shared_of_gemma_3n(keys: Keys) -> int:
    """Returns the number of layers that reuse keys and values of earlier ones."""
    shared = max(keys.layers - _OWN_KEYS_OF_GEMMA_3N, 0)
    if keys.number("attention.shared_kv_layers", shared) != shared:
        raise keys.refuse(f"must have attention.shared_kv_layers = {shared}")
    return shared


def _scales_of_experts(at: At) -> Weight:
    name = "=blk.*.ffn_down_exps.scale"
    if at.has(name):
        return at.weight(name)
    return constant(lambda at: np.ones(at.keys.number("expert_count")))(at)


def _scale_of_layer(at: At) -> Weight:
    name = "blk.*.layer_output_scale.weight"
    return at.weight(name) if at.has(name) else constant(lambda at: np.ones(1))(at)


_PLAIN_GEMMA_2: Mapping[str, Named] = {
    **LLAMA,
    "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm",
    "model.layers.*.pre_feedforward_layernorm": "blk.*.ffn_norm",
    "model.layers.*.post_feedforward_layernorm": "blk.*.post_ffw_norm",
}
_PER_LAYER: Mapping[str, Named] = {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    "model.layers.*.per_layer_input_gate": "blk.*.inp_gate",
    "model.layers.*.per_layer_projection": "blk.*.proj",
    "model.layers.*.post_per_layer_input_norm": "blk.*.post_norm",
}
_ALL_BIASES = (*QKV_BIASES, "attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")

_QWEN_2 = Architecture(
    "qwen2", LLAMA, {**DECODER, "use_sliding_window": False}, optional=QKV_BIASES
)
_QWEN_3 = Architecture(
    "qwen3",
    {**LLAMA, **QK_NORMED},
    {**DECODER, "use_sliding_window": False, "attention_bias": has_biases()},
)
# Keys for images, which text does not use.
PICTURES = ("n_deepstack_layers", "deepstack_mapping")

DENSE: Mapping[str, Architecture] = {
    "llama": Architecture(
        "llama",
        PAIRED,
        {
            **DECODER,
            "attention_bias": has_biases(),
            "mlp_bias": has_biases(*_FEED_FORWARD),
        },
    ),
    "qwen2": _QWEN_2,
    # The language model of a vision-language model: text has one position, as in Qwen 2.
    "qwen2vl": _QWEN_2,
    "qwen3": _QWEN_3,
    "qwen3vl": replace(_QWEN_3, without_effect=PICTURES),
    "bitnet": Architecture(
        "bitnet",
        {
            **LLAMA,
            "model.layers.*.self_attn.attn_sub_norm": "blk.*.attn_sub_norm",
            "model.layers.*.mlp.ffn_sub_norm": "blk.*.ffn_sub_norm",
        },
        {**DECODER, "hidden_act": "silu"},
    ),
    "gemma": Architecture("gemma", _GEMMA, {**DECODER, "hidden_act": "gelu_pytorch_tanh"}),
    "gemma2": Architecture(
        "gemma2",
        _GEMMA_2,
        {
            **DECODER,
            "query_pre_attn_scalar": _scale_of_gemma(46),
            "attn_logit_softcapping": real("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": real("final_logit_softcapping", 30.0),
            "sliding_window": lambda keys: keys.number("attention.sliding_window", 4096),
            "layer_types": layer_types(2),
        },
        ropes=_one_base,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        {
            **_GEMMA_2,
            "model.layers.*.self_attn.q_norm": less_one("blk.*.attn_q_norm"),
            "model.layers.*.self_attn.k_norm": less_one("blk.*.attn_k_norm"),
        },
        {
            **DECODER,
            "query_pre_attn_scalar": _scale_of_gemma(62),
            "final_logit_softcapping": lambda keys: (
                keys.real("final_logit_softcapping", 0.0) or None
            ),
            "sliding_window": lambda keys: _window(keys) or 1,
            "layer_types": _types_of_gemma_3,
        },
        ropes=_ropes_of_gemma_3,
    ),
    "phi2": Architecture(
        "phi",
        {
            "model.embed_tokens": "token_embd",
            "model.final_layernorm": "output_norm",
            "lm_head": "output",
            "model.layers.*.input_layernorm": "blk.*.attn_norm",
            "model.layers.*.self_attn.q_proj": heads("q"),
            "model.layers.*.self_attn.k_proj": heads("k"),
            "model.layers.*.self_attn.v_proj": heads("v"),
            "model.layers.*.self_attn.dense": "blk.*.attn_output",
            "model.layers.*.mlp.fc1": "blk.*.ffn_up",
            "model.layers.*.mlp.fc2": "blk.*.ffn_down",
        },
        {**LAYER_NORMED, "partial_rotary_factor": _partial},
        optional=QKV_BIASES,
    ),
    "phi3": Architecture(
        "phi3",
        {
            **{name: of for name, of in LLAMA.items() if "_proj" not in name},
            "model.layers.*.self_attn.qkv_proj": fused,
            "model.layers.*.self_attn.o_proj": "blk.*.attn_output",
            "model.layers.*.mlp.gate_up_proj": gate_and_up,
            "model.layers.*.mlp.down_proj": "blk.*.ffn_down",
        },
        {
            **DECODER,
            "partial_rotary_factor": _partial,
            "sliding_window": None,
            "pad_token_id": None,
            "original_max_position_embeddings": lambda keys: keys.number(
                "rope.scaling.original_context_length", keys.number("context_length")
            ),
        },
        # llama.cpp applies no window either, because files contain it for models without one.
        without_effect=("attention.sliding_window",),
    ),
    "starcoder": Architecture(
        "gpt_bigcode",
        {
            **_GPT_EMBEDDINGS,
            **{f"transformer.h.*.{of}": f"blk.*.{name}" for name, of in _GPT.items()},
            "transformer.h.*.attn.c_attn": _starcoder_qkv,
        },
        {
            **_GPT_CONFIG,
            **_DROPS,
            "n_positions": _positions,
            "multi_query": lambda keys: keys.kv_heads == 1,
        },
        ropes=None,
    ),
    "starcoder2": Architecture(
        "starcoder2",
        {
            **{name: of for name, of in LLAMA.items() if ".mlp." not in name},
            "model.layers.*.mlp.c_fc": "blk.*.ffn_up",
            "model.layers.*.mlp.c_proj": "blk.*.ffn_down",
        },
        {
            **LAYER_NORMED,
            "norm_epsilon": real("attention.layer_norm_epsilon"),
            "use_bias": True,
            "sliding_window": None,
        },
        optional=_ALL_BIASES,
    ),
    "stablelm": Architecture(
        "stablelm",
        {
            **LLAMA,
            "model.layers.*.self_attn.q_layernorm.norms.*": per_head("blk.*.attn_q_norm"),
            "model.layers.*.self_attn.k_layernorm.norms.*": per_head("blk.*.attn_k_norm"),
        },
        {
            **LAYER_NORMED,
            "partial_rotary_factor": _partial,
            "use_qkv_bias": has_biases("attn_q", "attn_k", "attn_v"),
            "qk_layernorm": lambda keys: keys.has_tensor("blk.*.attn_q_norm.weight"),
            "use_parallel_residual": _has_parallel_residual,
        },
    ),
    "gpt2": Architecture(
        "gpt2",
        {
            **_GPT_EMBEDDINGS,
            **{
                f"transformer.h.*.{of}": f"blk.*.{name}"
                if "ln" in of
                else transposed(f"blk.*.{name}")
                for name, of in _GPT.items()
            },
            "transformer.h.*.attn.c_attn": transposed("blk.*.attn_qkv"),
        },
        {**_GPT_CONFIG, **_DROPS, "n_positions": _positions},
        ropes=None,
    ),
    "gptj": Architecture(
        "gptj",
        {
            "transformer.wte": "token_embd",
            "transformer.ln_f": "output_norm",
            "lm_head": "output",
            "transformer.h.*.ln_1": "blk.*.attn_norm",
            "transformer.h.*.attn.q_proj": heads("q"),
            "transformer.h.*.attn.k_proj": heads("k"),
            "transformer.h.*.attn.v_proj": heads("v"),
            "transformer.h.*.attn.out_proj": "blk.*.attn_output",
            "transformer.h.*.mlp.fc_in": "blk.*.ffn_up",
            "transformer.h.*.mlp.fc_out": "blk.*.ffn_down",
        },
        {
            **_GPT_CONFIG,
            **_DROPS,
            "n_positions": lambda keys: min(keys.number("context_length"), 1 << 20),
            "rotary_dim": lambda keys: keys.rotated,
        },
        ropes=None,
        without_effect=("rope.freq_base",),
    ),
    "gptneox": Architecture(
        "gpt_neox",
        {
            "gpt_neox.embed_in": "token_embd",
            "gpt_neox.final_layer_norm": "output_norm",
            "lm_head": "output",
            "embed_out": "output",
            "gpt_neox.layers.*.input_layernorm": "blk.*.attn_norm",
            "gpt_neox.layers.*.post_attention_layernorm": "blk.*.ffn_norm",
            "gpt_neox.layers.*.attention.query_key_value": _by_head,
            "gpt_neox.layers.*.attention.dense": "blk.*.attn_output",
            "gpt_neox.layers.*.mlp.dense_h_to_4h": "blk.*.ffn_up",
            "gpt_neox.layers.*.mlp.dense_4h_to_h": "blk.*.ffn_down",
        },
        {
            **LAYER_NORMED,
            "partial_rotary_factor": _partial,
            "rotary_pct": _partial,
            "use_parallel_residual": lambda keys: bool(keys.get("use_parallel_residual")),
        },
    ),
    "falcon": Architecture(
        "falcon",
        {
            "transformer.word_embeddings": "token_embd",
            "transformer.ln_f": "output_norm",
            "lm_head": "output",
            "transformer.h.*.input_layernorm": "blk.*.attn_norm",
            "transformer.h.*.ln_attn": _falcon_norm("attention"),
            "transformer.h.*.ln_mlp": _falcon_norm("mlp"),
            "transformer.h.*.self_attention.query_key_value": _by_group,
            "transformer.h.*.self_attention.dense": "blk.*.attn_output",
            "transformer.h.*.mlp.dense_h_to_4h": "blk.*.ffn_up",
            "transformer.h.*.mlp.dense_4h_to_h": "blk.*.ffn_down",
        },
        {
            **{
                name: of
                for name, of in LAYER_NORMED.items()
                if name not in ("layer_norm_eps", "head_dim")
            },
            "layer_norm_epsilon": real("attention.layer_norm_epsilon"),
            "num_kv_heads": lambda keys: keys.kv_heads,
            "ffn_hidden_size": lambda keys: keys.number("feed_forward_length"),
            "new_decoder_architecture": _is_new_falcon,
            "num_ln_in_parallel_attn": lambda keys: (
                2 if keys.has_tensor("blk.*.attn_norm_2.weight") else 1
            ),
            "multi_query": lambda keys: not _is_new_falcon(keys),
            "parallel_attn": True,
            "bias": False,
            "alibi": False,
        },
        without_effect=("tensor_data_layout",),
    ),
    "bloom": Architecture(
        "bloom",
        {
            "transformer.word_embeddings": "token_embd",
            "transformer.word_embeddings_layernorm": "token_embd_norm",
            "transformer.ln_f": "output_norm",
            "lm_head": "output",
            "transformer.h.*.input_layernorm": "blk.*.attn_norm",
            "transformer.h.*.self_attention.query_key_value": _by_head,
            "transformer.h.*.self_attention.dense": "blk.*.attn_output",
            "transformer.h.*.post_attention_layernorm": "blk.*.ffn_norm",
            "transformer.h.*.mlp.dense_h_to_4h": "blk.*.ffn_up",
            "transformer.h.*.mlp.dense_4h_to_h": "blk.*.ffn_down",
        },
        {
            "vocab_size": lambda keys: keys.vocabulary,
            "hidden_size": lambda keys: keys.width,
            "n_layer": lambda keys: keys.layers,
            "n_head": lambda keys: keys.heads,
            "layer_norm_epsilon": real("attention.layer_norm_epsilon"),
            "tie_word_embeddings": lambda keys: keys.is_tied,
        },
        ropes=None,
        without_effect=("feed_forward_length", "attention.head_count_kv", "context_length"),
    ),
    "mpt": Architecture(
        "mpt",
        {
            "transformer.wte": "token_embd",
            "transformer.norm_f": "output_norm",
            "lm_head": "output",
            "transformer.blocks.*.norm_1": "blk.*.attn_norm",
            "transformer.blocks.*.attn.Wqkv": fused,
            "transformer.blocks.*.attn.out_proj": "blk.*.attn_output",
            "transformer.blocks.*.norm_2": "blk.*.ffn_norm",
            "transformer.blocks.*.ffn.up_proj": "blk.*.ffn_up",
            "transformer.blocks.*.ffn.down_proj": "blk.*.ffn_down",
        },
        {
            "vocab_size": lambda keys: keys.vocabulary,
            "d_model": lambda keys: keys.width,
            "n_layers": lambda keys: keys.layers,
            "n_heads": lambda keys: keys.heads,
            "max_seq_len": lambda keys: min(keys.number("context_length"), 1 << 20),
            "layer_norm_epsilon": real("attention.layer_norm_epsilon"),
            "attn_config": lambda keys: {
                "alibi": True,
                "alibi_bias_max": int(keys.real("attention.max_alibi_bias", 0.0)),
                "clip_qkv": keys.real("attention.clamp_kqv", 0.0) or None,
            },
            "tie_word_embeddings": lambda keys: keys.is_tied,
        },
        ropes=None,
        without_effect=("feed_forward_length", "attention.head_count_kv"),
    ),
    "nemotron": Architecture(
        "nemotron",
        {
            **{name: of for name, of in LLAMA.items() if "gate_proj" not in name},
            "model.norm": less_one("output_norm"),
            "model.layers.*.input_layernorm": less_one("blk.*.attn_norm"),
            "model.layers.*.post_attention_layernorm": less_one("blk.*.ffn_norm"),
        },
        {
            **LAYER_NORMED,
            "norm_eps": real("attention.layer_norm_epsilon"),
            "hidden_act": "relu2",
            "partial_rotary_factor": _partial,
        },
    ),
    "olmo": Architecture(
        "olmo",
        {name: of for name, of in PAIRED.items() if not name.endswith(("norm", "layernorm"))},
        {
            **{name: of for name, of in DECODER.items() if name != "rms_norm_eps"},
            "clip_qkv": lambda keys: keys.real("attention.clamp_kqv", 0.0) or None,
            "attention_bias": has_biases(),
        },
        prepare=_norms_of_olmo,
    ),
    "olmo2": Architecture("olmo2", _POST_NORMED, {**DECODER, "attention_bias": has_biases()}),
    "olmo2(window)": Architecture(
        "olmo3",
        _POST_NORMED,
        {
            **DECODER,
            "attention_bias": has_biases(),
            "sliding_window": _window,
            "layer_types": layer_types(4),
        },
        ropes=two_ropes,
    ),
    "granite": Architecture(
        "granite",
        PAIRED,
        {
            **DECODER,
            "attention_bias": has_biases(),
            "mlp_bias": has_biases(*_FEED_FORWARD),
            "logits_scaling": real("logit_scale"),
            "residual_multiplier": lambda keys: keys.real("residual_scale", 0.0) or 1.0,
            "embedding_multiplier": lambda keys: keys.real("embedding_scale", 0.0) or 1.0,
            "attention_multiplier": lambda keys: (
                keys.real("attention.scale", 0.0) or 1.0 / math.sqrt(keys.head_dim)
            ),
        },
        ropes=_granite_rope,
    ),
    "command-r": Architecture(
        "cohere",
        {**_COHERE, **QK_NORMED},
        {
            **LAYER_NORMED,
            "logit_scale": lambda keys: keys.real("logit_scale", 0.0) or 1.0,
            "use_qk_norm": lambda keys: keys.has_tensor("blk.*.attn_q_norm.weight"),
        },
    ),
    "cohere2": Architecture(
        "cohere2",
        _COHERE,
        {
            **LAYER_NORMED,
            "logit_scale": real("logit_scale"),
            "sliding_window": lambda keys: keys.number("attention.sliding_window"),
            "layer_types": layer_types(4),
        },
        ropes=_one_base,
    ),
    "chatglm": Architecture(
        "glm", _GLM, {**DECODER, "partial_rotary_factor": _partial}, optional=QKV_BIASES
    ),
    "glm4": Architecture(
        "glm4",
        {
            **_GLM,
            "model.layers.*.post_self_attn_layernorm": "blk.*.post_attention_norm",
            "model.layers.*.post_mlp_layernorm": "blk.*.post_ffw_norm",
        },
        {**DECODER, "partial_rotary_factor": _partial},
        optional=QKV_BIASES,
    ),
    "exaone4": Architecture(
        "exaone4",
        _POST_NORMED,
        {**DECODER, "sliding_window": _window_of_exaone, "layer_types": _types_of_exaone},
        ropes=_one_base,
    ),
    "smollm3": Architecture(
        "smollm3",
        PAIRED,
        {
            **DECODER,
            "no_rope_layers": lambda keys: [int((at + 1) % 4 != 0) for at in range(keys.layers)],
            "use_sliding_window": False,
            "attention_bias": has_biases(),
            "mlp_bias": has_biases(*_FEED_FORWARD),
        },
    ),
    "arcee": Architecture(
        "arcee",
        {name: of for name, of in PAIRED.items() if "gate_proj" not in name},
        {**DECODER, "attention_bias": has_biases(), "mlp_bias": has_biases("ffn_up", "ffn_down")},
    ),
    "ernie4_5": Architecture("ernie4_5", LLAMA, DECODER),
    "hunyuan-dense": Architecture(
        "hunyuan_v1_dense",
        {
            **LLAMA,
            "model.layers.*.self_attn.query_layernorm": "blk.*.attn_q_norm",
            "model.layers.*.self_attn.key_layernorm": "blk.*.attn_k_norm",
        },
        {**DECODER, "attention_bias": has_biases()},
    ),
    "seed_oss": Architecture(
        "seed_oss",
        {**LLAMA, "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm"},
        DECODER,
        optional=QKV_BIASES,
    ),
    "apertus": Architecture(
        "apertus",
        {
            **{
                name: of
                for name, of in LLAMA.items()
                if "gate_proj" not in name and "layernorm" not in name
            },
            **QK_NORMED,
            "model.layers.*.attention_layernorm": "blk.*.attn_norm",
            "model.layers.*.feedforward_layernorm": "blk.*.ffn_norm",
            "model.layers.*.mlp.act_fn.alpha_p": _xielu("xielu.alpha_p"),
            "model.layers.*.mlp.act_fn.alpha_n": _xielu("xielu.alpha_n"),
            "model.layers.*.mlp.act_fn.beta": _xielu("xielu.beta"),
            "model.layers.*.mlp.act_fn.eps": _xielu("xielu.eps"),
        },
        {**DECODER, "attention_bias": has_biases()},
    ),
    "mistral3": Architecture(
        "ministral3",
        PAIRED,
        DECODER,
        ropes=one_rope(has_yarn_keys=True),
        rope_extras=lambda keys: {
            "llama_4_scaling_beta": keys.real("attention.temperature_scale", 0.0),
            "original_max_position_embeddings": keys.number(
                "rope.scaling.original_context_length", keys.number("context_length")
            ),
        },
    ),
    "jais2": Architecture(
        "jais2",
        {name: of for name, of in LLAMA.items() if "gate_proj" not in name},
        LAYER_NORMED,
        optional=_ALL_BIASES,
    ),
    "gemma3n": Architecture(
        "gemma3n_text",
        {
            **_PLAIN_GEMMA_2,
            **QK_NORMED,
            **_PER_LAYER,
            "model.altup_projections.*": _of_stream("altup_proj"),
            "model.altup_unembed_projections.*": _of_stream("altup_unembd_proj"),
            "model.layers.*.altup.correct_output_scale": "blk.*.altup_correct_scale.weight",
            "model.layers.*.altup.correction_coefs": "blk.*.altup_correct_coef",
            "model.layers.*.altup.prediction_coefs": "blk.*.altup_predict_coef",
            "model.layers.*.altup.modality_router": "blk.*.altup_router",
            "model.layers.*.altup.router_norm": "blk.*.altup_router_norm",
            "model.layers.*.laurel.linear_left": "blk.*.laurel_l",
            "model.layers.*.laurel.linear_right": "blk.*.laurel_r",
            "model.layers.*.laurel.post_laurel_norm": "blk.*.laurel_post_norm",
        },
        {
            **DECODER,
            "intermediate_size": lambda keys: keys.by_layer("feed_forward_length"),
            "laurel_rank": lambda keys: keys.tensor("blk.0.laurel_l.weight").shape[0],
            "altup_active_idx": 0,
            "altup_num_inputs": lambda keys: keys.tensor("altup_proj.weight").shape[0] + 1,
            "num_kv_shared_layers": _shared_of_gemma_3n,
            "activation_sparsity_pattern": lambda keys: [
                0.95 if layer < 10 else 0.0 for layer in range(keys.layers)
            ],
            "hidden_size_per_layer_input": lambda keys: keys.tensor(
                "per_layer_proj_norm.weight"
            ).shape[0],
            "vocab_size_per_layer_input": lambda keys: keys.tensor(
                "per_layer_token_embd.weight"
            ).shape[0],
            "final_logit_softcapping": 30.0,
            "sliding_window": lambda keys: keys.number("attention.sliding_window"),
            "layer_types": layer_types(5),
        },
        ropes=_ropes_of_gemma_3,
        # Layers that reuse keys and values of earlier ones.
        unused=tuple(
            f"blk.{layer}.{name}."
            for layer in range(_OWN_KEYS_OF_GEMMA_3N, 64)
            for name in ("attn_k", "attn_k_norm", "attn_v")
        ),
        # Hard-coded in llama.cpp.
        without_effect=(
            "activation_sparsity_scale",
            "altup.active_idx",
            "altup.num_inputs",
            "embedding_length_per_layer_input",
        ),
    ),
    "gemma4": Architecture(
        "gemma4_text",
        {
            **_PLAIN_GEMMA_2,
            **QK_NORMED,
            **{
                f"model.layers.*.self_attn.{part}_proj": f"blk.*.attn_{part}"
                for part in ("q", "k", "v")
            },
            "model.layers.*.layer_scalar": _scale_of_layer,
            **_PER_LAYER,
            "model.layers.*.router.proj": "blk.*.ffn_gate_inp",
            "model.layers.*.router.scale": "=blk.*.ffn_gate_inp.scale",
            "model.layers.*.router.per_expert_scale": _scales_of_experts,
            "model.layers.*.experts.gate_up_proj": gates_and_ups,
            "model.layers.*.experts.down_proj": "blk.*.ffn_down_exps.weight",
            "model.layers.*.pre_feedforward_layernorm_2": "blk.*.pre_ffw_norm_2",
            "model.layers.*.post_feedforward_layernorm_1": "blk.*.post_ffw_norm_1",
            "model.layers.*.post_feedforward_layernorm_2": "blk.*.post_ffw_norm_2",
        },
        {
            **{
                name: of
                for name, of in DECODER.items()
                if name not in ("num_key_value_heads", "head_dim", "intermediate_size")
            },
            "intermediate_size": lambda keys: min(keys.by_layer("feed_forward_length")),
            "use_double_wide_mlp": lambda keys: len(set(keys.by_layer("feed_forward_length"))) > 1,
            "head_dim": lambda keys: _head_of_gemma_4(keys, "_swa"),
            "num_key_value_heads": lambda keys: _kv_of_gemma_4(keys, "sliding_attention"),
            "per_layer_config": _full_layers_of_gemma_4,
            "attention_k_eq_v": lambda keys: (
                not all(
                    f"blk.{layer}.attn_v.weight" in keys.file.tensors
                    for layer in _full_layers_of_gemma_4(keys)
                )
            ),
            "num_kv_shared_layers": lambda keys: keys.number("attention.shared_kv_layers", 0),
            "hidden_size_per_layer_input": lambda keys: keys.number(
                "embedding_length_per_layer_input"
            ),
            "vocab_size_per_layer_input": lambda keys: keys.vocabulary,
            "enable_moe_block": lambda keys: keys.has_tensor("blk.*.ffn_gate_inp.weight"),
            "num_experts": lambda keys: keys.number("expert_count", 0) or None,
            "top_k_experts": lambda keys: keys.number("expert_used_count", 0) or None,
            "moe_intermediate_size": lambda keys: keys.size(
                "blk.*.ffn_down_exps.weight", 2, "expert_feed_forward_length", default=0
            ),
            "final_logit_softcapping": lambda keys: (
                keys.real("final_logit_softcapping", 0.0) or None
            ),
            "sliding_window": lambda keys: keys.number("attention.sliding_window"),
            "layer_types": layer_types(6),
        },
        ropes=_ropes_of_gemma_4,
    ),
}
