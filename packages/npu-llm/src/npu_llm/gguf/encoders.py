"""Rows of the table for encoders, used for text embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_llm.gguf.dense import DENSE, layer_types
from npu_llm.gguf.keys import Keys
from npu_llm.gguf.ropes import Rope, read_rope
from npu_llm.gguf.rows import (
    DECODER,
    LAYER_NORMED,
    LLAMA,
    Architecture,
    At,
    Named,
    fused,
    heads,
    real,
)
from npu_llm.gguf.weights import Weight

__all__ = ["ENCODERS"]


def _is_not_causal(keys: Keys) -> bool:
    """Returns whether tokens attend to later ones, as in the class of an encoder."""
    if keys.get("attention.causal", False):
        raise keys.refuse("must have attention.causal = false, as encoders have")
    return True


def _kinds(keys: Keys) -> int:
    """Returns the rows of the table of token types; the first is used."""
    return (
        keys.tensor("token_types.weight").shape[0] if keys.has_tensor("token_types.weight") else 1
    )


def _positions(keys: Keys) -> int:
    rows = keys.tensor("position_embd.weight").shape[0]
    if keys.number("context_length") != rows:
        raise keys.refuse(f"must have a context_length of {rows}, as position_embd.weight has")
    return rows


def _without_pooler(model: Any, keys: Keys) -> None:
    """Removes the pooler after the first token, which only classifiers use."""
    if getattr(model, "pooler", None) is not None and not keys.has_tensor("cls.weight"):
        model.pooler = None


_BERT: Mapping[str, Named] = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "encoder.layer.*.attention.self.query": heads("q"),
    "encoder.layer.*.attention.self.key": heads("k"),
    "encoder.layer.*.attention.self.value": heads("v"),
    "encoder.layer.*.attention.output.dense": "blk.*.attn_output",
    "encoder.layer.*.attention.output.LayerNorm": "blk.*.attn_output_norm",
    "encoder.layer.*.intermediate.dense": "blk.*.ffn_up",
    "encoder.layer.*.output.dense": "blk.*.ffn_down",
    "encoder.layer.*.output.LayerNorm": "blk.*.layer_output_norm",
    "pooler.dense": "cls",
    "classifier": "cls.output",
}
_ROTATED: Mapping[str, Named] = {
    **{name: of for name, of in _BERT.items() if name.startswith("embeddings.")},
    "layers.*.self_attn.q_proj": heads("q"),
    "layers.*.self_attn.k_proj": heads("k"),
    "layers.*.self_attn.v_proj": heads("v"),
    "layers.*.self_attn.o_proj": "blk.*.attn_output",
    "layers.*.post_attention_layernorm": "blk.*.attn_output_norm",
    "layers.*.mlp.fc1": "blk.*.ffn_up",
    "layers.*.mlp.fc2": "blk.*.ffn_down",
    "layers.*.mlp.gate_proj": "blk.*.ffn_gate",
    "layers.*.mlp.up_proj": "blk.*.ffn_up",
    "layers.*.mlp.down_proj": "blk.*.ffn_down",
    "layers.*.post_mlp_layernorm": "blk.*.layer_output_norm",
}
_BIASES = tuple(
    f"{name}.bias"
    for name in ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_up", "ffn_down")
)
_ENCODER: Mapping[str, Any] = {
    **{name: of for name, of in LAYER_NORMED.items() if name != "head_dim"},
    "type_vocab_size": _kinds,
    "hidden_act": "gelu",
    "encodes": _is_not_causal,
}


def _classes(keys: Keys) -> int:
    return keys.tensor("cls.output.weight").shape[0] if keys.has_tensor("cls.output.weight") else 2


def _symmetric_window(keys: Keys) -> int:
    return keys.number("attention.sliding_window", 0) or 2 * keys.number("context_length")


def _types_of_modern_bert(keys: Keys) -> list[str]:
    types: list[str] = layer_types(3, dense_first=True)(keys)
    has_window = keys.number("attention.sliding_window", 0)
    return types if has_window else ["full_attention"] * keys.layers


def _two_bases(keys: Keys) -> Mapping[str, Rope]:
    base = keys.real("rope.freq_base_swa", 10_000.0)
    return {
        "full_attention_": read_rope(keys),
        "sliding_attention_": read_rope(keys, base=base, is_scaled=False, factors=None),
    }


def _activation(keys: Keys) -> str:
    name = keys.get("hidden_activation", "gelu")
    if name not in ("gelu", "silu"):
        raise keys.refuse(f"must have hidden_activation gelu or silu, got {name!r:.40}")
    return str(name)


_BLOCK = "encoder.block.*.layer.*"


def _norm_of_t5(at: At) -> Weight:
    return at.weight(f"enc.blk.*.{'ffn' if at.numbers[1] else 'attn'}_norm")


def _activation_of_t5(keys: Keys) -> str:
    return "gated-gelu" if keys.has_tensor("enc.blk.*.ffn_gate.weight") else "relu"


ENCODERS: Mapping[str, Architecture] = {
    "bert": Architecture(
        "bert",
        _BERT,
        {
            **{name: of for name, of in _ENCODER.items() if name != "num_key_value_heads"},
            "max_position_embeddings": _positions,
            "num_labels": _classes,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        ropes=None,
        prepare=_without_pooler,
        auto="AutoModel",
        optional=(*_BIASES, "token_types.weight"),
        unused=("cls.",),
    ),
    "nomic-bert": Architecture(
        "nomic_bert",
        _ROTATED,
        {
            **_ENCODER,
            "hidden_act": "silu",
            "head_dim": lambda keys: keys.head_dim,
            "pad_token_id": 0,
        },
        prepare=_without_pooler,
        auto="AutoModel",
        optional=(*_BIASES, "token_types.weight"),
    ),
    "jina-bert-v3": Architecture(
        "jina_embeddings_v3",
        _ROTATED,
        {
            **_ENCODER,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        prepare=_without_pooler,
        auto="AutoModel",
        optional=(*_BIASES, "token_types.weight"),
    ),
    "modern-bert": Architecture(
        "modernbert",
        {
            "embeddings.tok_embeddings": "token_embd",
            "embeddings.norm": "token_embd_norm",
            "layers.*.attn_norm": "blk.*.attn_norm",
            "layers.*.attn.Wqkv": fused,
            "layers.*.attn.Wo": "blk.*.attn_output",
            "layers.*.mlp_norm": "blk.*.ffn_norm",
            "layers.*.mlp.Wi": "blk.*.ffn_up",
            "layers.*.mlp.Wo": "blk.*.ffn_down",
            "final_norm": "output_norm",
        },
        {
            **{name: of for name, of in _ENCODER.items() if name not in ("hidden_act", "head_dim")},
            "norm_eps": real("attention.layer_norm_epsilon"),
            "hidden_activation": _activation,
            "local_attention": _symmetric_window,
            "layer_types": _types_of_modern_bert,
            "cls_token_id": None,
            "sep_token_id": None,
        },
        ropes=_two_bases,
        auto="AutoModel",
    ),
    "eurobert": Architecture(
        "eurobert",
        {name.removeprefix("model."): of for name, of in LLAMA.items()},
        {**DECODER, "encodes": _is_not_causal, "mask_token_id": 0},
        auto="AutoModel",
    ),
    "gemma-embedding": Architecture(
        "gemma3_text",
        {name.removeprefix("model."): of for name, of in DENSE["gemma3"].names.items()},
        {
            **DECODER,
            "query_pre_attn_scalar": lambda keys: keys.head_dim,
            "use_bidirectional_attention": _is_not_causal,
            "sliding_window": lambda keys: keys.number("attention.sliding_window"),
            "layer_types": layer_types(6),
        },
        ropes=_two_bases,
        auto="AutoModel",
    ),
    "t5encoder": Architecture(
        "t5",
        {
            "shared": "token_embd",
            "encoder.embed_tokens": "token_embd",
            "encoder.final_layer_norm": "enc.output_norm",
            **{f"{_BLOCK}.SelfAttention.{part}": f"enc.blk.*.attn_{part}" for part in "qkvo"},
            f"{_BLOCK}.SelfAttention.relative_attention_bias": "enc.blk.*.attn_rel_b",
            f"{_BLOCK}.layer_norm": _norm_of_t5,
            f"{_BLOCK}.DenseReluDense.wi": "enc.blk.*.ffn_up",
            f"{_BLOCK}.DenseReluDense.wi_0": "enc.blk.*.ffn_gate",
            f"{_BLOCK}.DenseReluDense.wi_1": "enc.blk.*.ffn_up",
            f"{_BLOCK}.DenseReluDense.wo": "enc.blk.*.ffn_down",
        },
        {
            "vocab_size": lambda keys: keys.vocabulary,
            "d_model": lambda keys: keys.width,
            "d_kv": lambda keys: keys.head_dim,
            "d_ff": lambda keys: keys.number("feed_forward_length"),
            "num_layers": lambda keys: keys.layers,
            "num_heads": lambda keys: keys.heads,
            "relative_attention_num_buckets": lambda keys: keys.number(
                "attention.relative_buckets_count"
            ),
            "layer_norm_epsilon": real("attention.layer_norm_rms_epsilon"),
            "feed_forward_proj": _activation_of_t5,
            "dropout_rate": 0.0,
        },
        ropes=None,
        auto="AutoModelForTextEncoding",
        unused=("output.",),
        without_effect=("context_length", "decoder_start_token_id", "attention.head_count_kv"),
    ),
}
