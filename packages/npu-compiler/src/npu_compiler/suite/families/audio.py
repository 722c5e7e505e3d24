"""Audio models: encoders of waveforms and spectrograms, and speech recognition."""

from __future__ import annotations

from typing import Any

import torch

from npu_compiler.suite.families.architecture import (
    ANSWER_TOKENS,
    ENCODER_DECODER,
    answer,
    drawn,
    rows,
    waveform,
)

__all__ = ["ARCHITECTURES"]

_WAVES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "conv_dim": (32, 32, 32), "conv_stride": (5, 4, 2),
    "conv_kernel": (10, 8, 4), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip

_row = rows("audio", waveform)


def _spectrogram() -> dict[str, torch.Tensor]:
    """Returns (2, 64 frames, 32 bands) float32."""
    return {"input_values": torch.randn(2, 64, 32)}


def _recognition() -> dict[str, torch.Tensor]:
    """Returns (batch, 32 bands, 64 frames) float32 and an answer."""
    ids = answer()
    return {"input_features": torch.randn(len(ids["decoder_input_ids"]), 32, 64), **ids}


def _frames() -> dict[str, torch.Tensor]:
    """Returns (batch, 64 frames, 32 bands) float32."""
    return {"input_features": torch.randn(drawn().batch, 64, 32)}


def _translation() -> dict[str, torch.Tensor]:
    return {**_frames(), **answer()}


def _moonshine() -> dict[str, torch.Tensor]:
    """Returns waveforms with as many frames as a text has tokens, and an answer."""
    samples = 127 + 384 * (drawn().length + 1)
    return {"input_values": torch.randn(drawn().batch, samples), **answer()}


ARCHITECTURES = (
    _row("wav2vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config", **_WAVES),
    _row("wavlm", "WavLMForCTC", "WavLMConfig", num_buckets=16, max_bucket_distance=32, **_WAVES),
    _row(
        "data2vec_audio",
        "Data2VecAudioForCTC",
        "Data2VecAudioConfig",
        **{**_WAVES, "num_conv_pos_embeddings": 3, "conv_pos_kernel_size": 7},
    ),
    _row(
        "audio_spectrogram_transformer",
        "ASTForAudioClassification",
        "ASTConfig",
        _spectrogram,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_mel_bins=32,
        max_length=64,
    ),
    _row(
        "whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        _recognition,
        num_mel_bins=32,
        max_source_positions=32,
        max_target_positions=32,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **ENCODER_DECODER,
        **ANSWER_TOKENS,
    ),
    _row(
        "moonshine",
        "MoonshineForConditionalGeneration",
        "MoonshineConfig",
        _moonshine,
        hidden_size=64,
        intermediate_size=128,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        **ANSWER_TOKENS,
    ),
    _row("hubert", "HubertForCTC", "HubertConfig", **_WAVES),
    _row("sew", "SEWForCTC", "SEWConfig", **_WAVES),
    _row(
        "sew_d",
        "SEWDForCTC",
        "SEWDConfig",
        position_buckets=8,
        max_position_embeddings=64,
        **_WAVES,
    ),
    _row("unispeech", "UniSpeechForCTC", "UniSpeechConfig", **_WAVES),
    _row(
        "wav2vec2_conformer",
        "Wav2Vec2ConformerForCTC",
        "Wav2Vec2ConformerConfig",
        conv_depthwise_kernel_size=7,
        **_WAVES,
    ),
    _row(
        "wav2vec2_bert",
        "Wav2Vec2BertForCTC",
        "Wav2Vec2BertConfig",
        _frames,
        vocab_size=32,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        feature_projection_input_dim=32,
        conv_depthwise_kernel_size=7,
        left_max_position_embeddings=8,
        right_max_position_embeddings=4,
    ),
    _row(
        "parakeet_ctc",
        "ParakeetForCTC",
        "ParakeetCTCConfig",
        _frames,
        vocab_size=32,
        pad_token_id=0,
        encoder_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_mel_bins": 32,
            "subsampling_conv_channels": 16,
            "conv_kernel_size": 7,
        },
    ),
    _row(
        "speech_to_text",
        "Speech2TextForConditionalGeneration",
        "Speech2TextConfig",
        _translation,
        input_feat_per_channel=32,
        conv_channels=64,
        max_source_positions=64,
        max_target_positions=64,
        **ENCODER_DECODER,
        **ANSWER_TOKENS,
    ),
)
