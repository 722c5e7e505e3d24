"""Encoder-decoders of text, and one that recognizes text in images."""

from __future__ import annotations

from typing import Any

import torch

from npu_compiler.suite.families.architecture import (
    ANSWER_TOKENS,
    ENCODER_DECODER,
    answer,
    image,
    rows,
    translation,
)
from npu_compiler.suite.families.vision import PATCHES

__all__ = ["ARCHITECTURES"]

_TOKENS: dict[str, Any] = {**ANSWER_TOKENS, "forced_eos_token_id": None}
_BOTH: dict[str, Any] = {**ENCODER_DECODER, "max_position_embeddings": 64, **_TOKENS}
_T5: dict[str, Any] = {
    "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, **_TOKENS,
}  # fmt: skip

_row = rows("encoder-decoder", translation)


def _reading() -> dict[str, torch.Tensor]:
    """Returns images and an answer."""
    return {**image(), **answer()}


ARCHITECTURES = (
    _row("t5", "T5ForConditionalGeneration", "T5Config", **_T5),
    _row("bart", "BartForConditionalGeneration", "BartConfig", **_BOTH),
    _row("marian", "MarianMTModel", "MarianConfig", **_BOTH),
    _row("pegasus", "PegasusForConditionalGeneration", "PegasusConfig", **_BOTH),
    _row("m2m_100", "M2M100ForConditionalGeneration", "M2M100Config", **_BOTH),
    _row(
        "trocr",
        "VisionEncoderDecoderModel",
        "VisionEncoderDecoderConfig",
        _reading,
        encoder={"model_type": "vit", **PATCHES},
        decoder={
            "model_type": "trocr",
            "is_decoder": True,
            "add_cross_attention": True,
            "cross_attention_hidden_size": 64,
            "d_model": 64,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 128,
            "max_position_embeddings": 64,
            **_TOKENS,
        },
    ),
    _row("mt5", "MT5ForConditionalGeneration", "MT5Config", **_T5),
    _row("umt5", "UMT5ForConditionalGeneration", "UMT5Config", **_T5),
    _row("longt5", "LongT5ForConditionalGeneration", "LongT5Config", local_radius=3, **_T5),
    _row("mbart", "MBartForConditionalGeneration", "MBartConfig", **_BOTH),
    _row("blenderbot", "BlenderbotForConditionalGeneration", "BlenderbotConfig", **_BOTH),
    _row("mvp", "MvpForConditionalGeneration", "MvpConfig", **_BOTH),
    _row("plbart", "PLBartForConditionalGeneration", "PLBartConfig", **_BOTH),
    _row(
        "pegasus_x",
        "PegasusXForConditionalGeneration",
        "PegasusXConfig",
        block_size=8,
        num_global_tokens=4,
        **_BOTH,
    ),
    _row(
        "led",
        "LEDForConditionalGeneration",
        "LEDConfig",
        attention_window=[4, 4],
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
        **_BOTH,
    ),
    _row(
        "prophetnet",
        "ProphetNetForConditionalGeneration",
        "ProphetNetConfig",
        hidden_size=64,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_position_embeddings=64,
        ngram=2,
        num_buckets=8,
        relative_max_distance=16,
        **_TOKENS,
    ),
)
