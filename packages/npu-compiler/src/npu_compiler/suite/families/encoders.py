"""Text encoders, with and without a head."""

from __future__ import annotations

from typing import Any

from npu_compiler.suite.families.architecture import (
    VOCABULARY,
    padded,
    rows,
    text,
)

__all__ = ["ARCHITECTURES", "ENCODER"]

_SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
ENCODER: dict[str, Any] = {"vocab_size": VOCABULARY, "pad_token_id": 0, **_SIZES}

_row = rows("encoder", padded)


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
    _row("big_bird", "BigBirdForMaskedLM", "BigBirdConfig", **ENCODER),
    _row("convbert", "ConvBertForMaskedLM", "ConvBertConfig", embedding_size=64, **ENCODER),
    _row(
        "deberta",
        "DebertaForMaskedLM",
        "DebertaConfig",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        **ENCODER,
    ),
    _row(
        "esm",
        "EsmForMaskedLM",
        "EsmConfig",
        mask_token_id=1,
        max_position_embeddings=64,
        position_embedding_type="rotary",
        **ENCODER,
    ),
    _row(
        "funnel",
        "FunnelForMaskedLM",
        "FunnelConfig",
        vocab_size=VOCABULARY,
        d_model=64,
        n_head=4,
        d_head=16,
        d_inner=128,
        block_sizes=[1, 1],
        num_decoder_layers=1,
    ),
    _row("ibert", "IBertForMaskedLM", "IBertConfig", **ENCODER),
    _row("layoutlm", "LayoutLMForMaskedLM", "LayoutLMConfig", **ENCODER),
    _row("longformer", "LongformerForMaskedLM", "LongformerConfig", attention_window=4, **ENCODER),
    _row("megatron_bert", "MegatronBertForMaskedLM", "MegatronBertConfig", **ENCODER),
    _row(
        "mobilebert",
        "MobileBertForMaskedLM",
        "MobileBertConfig",
        embedding_size=32,
        intra_bottleneck_size=32,
        true_hidden_size=32,
        **ENCODER,
    ),
    _row(
        "rembert",
        "RemBertForMaskedLM",
        "RemBertConfig",
        input_embedding_size=32,
        output_embedding_size=32,
        **ENCODER,
    ),
    _row("roformer", "RoFormerForMaskedLM", "RoFormerConfig", embedding_size=64, **ENCODER),
    _row("nomic_bert", "NomicBertForMaskedLM", "NomicBertConfig", **ENCODER),
    _row("yoso", "YosoForMaskedLM", "YosoConfig", use_expectation=True, **ENCODER),
    _row("canine", "CanineModel", "CanineConfig", **ENCODER),
    _row(
        "xlm",
        "XLMWithLMHeadModel",
        "XLMConfig",
        vocab_size=VOCABULARY,
        emb_dim=64,
        n_layers=2,
        n_heads=4,
    ),
    _row(
        "xlnet",
        "XLNetLMHeadModel",
        "XLNetConfig",
        vocab_size=VOCABULARY,
        d_model=64,
        d_inner=128,
        n_layer=2,
        n_head=4,
    ),
)
