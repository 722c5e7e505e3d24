"""Encoders of text, with and without a head.

Encoders of other inputs are in vision.py and audio.py.
"""

from __future__ import annotations

from typing import Any

from npu_compiler.suite.architecture import VOCABULARY, Architecture, from_config, padded, text

__all__ = ["ARCHITECTURES", "ENCODER"]

_SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
ENCODER: dict[str, Any] = {"vocab_size": VOCABULARY, "pad_token_id": 0, **_SIZES}


def _row(name: str, model: str, config: str, inputs: Any = padded, **settings: Any) -> Architecture:
    return Architecture(name, "encoder", from_config(model, config, **settings), inputs)


ARCHITECTURES = (
    _row("bert", "BertModel", "BertConfig", **ENCODER),
    _row("roberta", "RobertaForMaskedLM", "RobertaConfig", **ENCODER),
    _row("electra", "ElectraForTokenClassification", "ElectraConfig", **ENCODER),
    _row("albert", "AlbertForMaskedLM", "AlbertConfig", embedding_size=32, **ENCODER),
    _row(
        "distilbert",
        "DistilBertForQuestionAnswering",
        "DistilBertConfig",
        vocab_size=VOCABULARY,
        dim=64,
        hidden_dim=128,
        n_layers=2,
        n_heads=4,
    ),
    _row("mpnet", "MPNetModel", "MPNetConfig", **ENCODER),
    _row(
        "deberta_v2",
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        **ENCODER,
    ),
    _row("modernbert", "ModernBertForMaskedLM", "ModernBertConfig", local_attention=8, **ENCODER),
    _row("squeezebert", "SqueezeBertModel", "SqueezeBertConfig", embedding_size=64, **ENCODER),
    _row(
        "fnet",
        "FNetModel",
        "FNetConfig",
        text,
        **{key: value for key, value in ENCODER.items() if key != "num_attention_heads"},
    ),
    _row(
        "t5_encoder",
        "T5EncoderModel",
        "T5Config",
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        pad_token_id=0,
    ),
)
