"""Table of task models for the survey: a small configuration of each family.

tools/task_survey.py draws random weights.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CONFIGS", "TASKS", "WRITING"]

_SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 44,
}  # fmt: skip
_TEXT: dict[str, Any] = {
    **_SIZES, "vocab_size": 99, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
# Positions start at the padding token.
_PADDED: dict[str, Any] = {**_TEXT, "pad_token_id": 1}
_IMAGE: dict[str, Any] = {**_SIZES, "image_size": 32, "patch_size": 8}
_STAGES: dict[str, Any] = {"hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 1, 1]}
_SOUND: dict[str, Any] = {
    **_SIZES, "vocab_size": 32, "conv_dim": (8, 12), "conv_stride": (5, 4), "conv_kernel": (10, 4),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
_DETR: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_queries": 7,
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
}  # fmt: skip
_HALVES: dict[str, Any] = {
    "vocab_size": 97, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 44, "max_position_embeddings": 70,
}  # fmt: skip
_T5: dict[str, Any] = {
    "vocab_size": 97, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
_PAIR: dict[str, Any] = {
    "text_config": _TEXT, "vision_config": _IMAGE, "projection_dim": 20,
}  # fmt: skip

# transformers' model_type -> the prefix of its config's class, and its arguments.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("Albert", {**_TEXT, "embedding_size": 16}),
    "audio-spectrogram-transformer": (
        "AST", {**_SIZES, "max_length": 64, "num_mel_bins": 32},
    ),
    "bart": ("Bart", _HALVES),
    "beit": ("Beit", {**_IMAGE, "num_hidden_layers": 4, "out_indices": [0, 1, 2, 3]}),
    "bert": ("Bert", _TEXT),
    "big_bird": ("BigBird", {**_TEXT, "attention_type": "original_full"}),
    "blenderbot": ("Blenderbot", _HALVES),
    "camembert": ("Camembert", _PADDED),
    "clip": ("CLIP", _PAIR),
    "convnext": ("ConvNext", _STAGES),
    "convnextv2": ("ConvNextV2", _STAGES),
    "data2vec-audio": ("Data2VecAudio", {**_SOUND, "conv_pos_kernel_size": 3}),
    "data2vec-text": ("Data2VecText", _PADDED),
    "deberta": ("Deberta", {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "deberta-v2": (
        "DebertaV2",
        {**_TEXT, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"],
         "norm_rel_ebd": "layer_norm", "share_att_key": True},
    ),
    "detr": ("Detr", {**_DETR, "backbone_config": "resnet"}),
    "dinov2": ("Dinov2", _IMAGE),
    "distilbert": (
        "DistilBert",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 44, "vocab_size": 99,
         "max_position_embeddings": 64},
    ),
    "efficientnet": (
        "EfficientNet",
        {"image_size": 32, "width_coefficient": 0.5, "depth_coefficient": 0.3, "hidden_dim": 640},
    ),
    "electra": ("Electra", {**_TEXT, "embedding_size": 20}),
    "ernie": ("Ernie", _TEXT),
    "esm": ("Esm", {**_PADDED, "mask_token_id": 4}),
    "fnet": ("FNet", {**_TEXT, "type_vocab_size": 2}),
    "hubert": ("Hubert", _SOUND),
    "layoutlm": ("LayoutLM", _TEXT),
    "m2m_100": ("M2M100", _HALVES),
    "marian": (
        "Marian", {**_HALVES, "pad_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 0},
    ),
    "mbart": ("MBart", {**_HALVES, "decoder_start_token_id": 5}),
    "megatron-bert": ("MegatronBert", _TEXT),
    "mobilebert": (
        "MobileBert",
        {**_TEXT, "embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16},
    ),
    "mobilenet_v2": ("MobileNetV2", {"image_size": 32, "depth_multiplier": 0.25}),
    "mobilevit": (
        "MobileViT",
        {"image_size": 64, "hidden_sizes": [16, 20, 24], "neck_hidden_sizes": [8, 8, 12, 12, 16,
         16, 24], "num_attention_heads": 4},
    ),
    "modernbert": (
        "ModernBert",
        {**_TEXT, "local_attention": 8, "cls_token_id": 2, "sep_token_id": 3},
    ),
    "moonshine": (
        "Moonshine",
        {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48,
         "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
         "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4},
    ),
    "mpnet": ("MPNet", _PADDED),
    "mt5": ("MT5", _T5),
    "nystromformer": ("Nystromformer", {**_TEXT, "num_landmarks": 4, "segment_means_seq_len": 64}),
    "pegasus": ("Pegasus", _HALVES),
    "poolformer": (
        "PoolFormer", {"hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 1, 1]},
    ),
    "pvt": ("Pvt", {"image_size": 64, "hidden_sizes": [8, 16, 24, 32], "depths": [1] * 4,
                    "num_attention_heads": [1, 2, 3, 4]}),
    "regnet": ("RegNet", {"embedding_size": 8, **_STAGES, "groups_width": 4}),
    "rembert": ("RemBert", {**_TEXT, "input_embedding_size": 16, "output_embedding_size": 24}),
    "resnet": ("ResNet", {"embedding_size": 8, **_STAGES}),
    "roberta": ("Roberta", _PADDED),
    "roberta-prelayernorm": ("RobertaPreLayerNorm", _PADDED),
    "roformer": ("RoFormer", _TEXT),
    "segformer": (
        "Segformer",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads":
         [1, 2, 3, 4], "decoder_hidden_size": 16},
    ),
    "sew": ("SEW", {**_SOUND, "squeeze_factor": 2}),
    "siglip": (
        "Siglip",
        {"text_config": {**_TEXT, "max_position_embeddings": 16, "projection_size": 32},
         "vision_config": _IMAGE},
    ),
    "squeezebert": ("SqueezeBert", {**_TEXT, "embedding_size": 32}),
    "swin": (
        "Swin",
        {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 2], "num_heads": [2, 2],
         "window_size": 4},
    ),
    "swinv2": (
        "Swinv2",
        {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 2], "num_heads": [2, 2],
         "window_size": 4},
    ),
    "t5": ("T5", _T5),
    "umt5": ("UMT5", _T5),
    "unispeech": ("UniSpeech", _SOUND),
    "unispeech-sat": ("UniSpeechSat", _SOUND),
    "vit": ("ViT", _IMAGE),
    "vit_msn": ("ViTMSN", _IMAGE),
    "wav2vec2": ("Wav2Vec2", _SOUND),
    "wav2vec2-conformer": ("Wav2Vec2Conformer", _SOUND),
    "wavlm": ("WavLM", {**_SOUND, "num_buckets": 8, "max_bucket_distance": 32}),
    "whisper": (
        "Whisper",
        {"vocab_size": 97, "d_model": 32, "num_mel_bins": 16, "encoder_layers": 1,
         "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "encoder_ffn_dim": 40, "decoder_ffn_dim": 44, "max_source_positions": 50,
         "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
         "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None},
    ),
    "xlm-roberta": ("XLMRoberta", _PADDED),
    "xlm-roberta-xl": ("XLMRobertaXL", _PADDED),
    "xmod": ("Xmod", {**_PADDED, "languages": ["en_XX"], "default_language": "en_XX"}),
    "yolos": ("Yolos", {**_SIZES, "image_size": [32, 48], "patch_size": 8,
                        "num_detection_tokens": 7}),
}  # fmt: skip

# The part of our class's name after NPUModelFor -> families to run. Text encoders share their body
# among tasks: all of them compute features, some the rest.
TASKS: dict[str, tuple[str, ...]] = {
    "FeatureExtraction": (
        "albert", "bert", "big_bird", "camembert", "data2vec-text", "deberta", "deberta-v2",
        "distilbert", "electra", "ernie", "esm", "fnet", "layoutlm", "megatron-bert", "mobilebert",
        "modernbert", "mpnet", "nystromformer", "rembert", "roberta", "roberta-prelayernorm",
        "roformer", "squeezebert", "xlm-roberta", "xlm-roberta-xl", "xmod",
    ),
    "SequenceClassification": (
        "albert", "bert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta",
        "xlm-roberta",
    ),
    "TokenClassification": ("bert", "deberta-v2", "distilbert", "electra", "roberta"),
    "QuestionAnswering": ("bert", "distilbert", "electra", "mpnet", "roberta"),
    "MaskedLM": ("albert", "bert", "distilbert", "modernbert", "roberta"),
    "ImageClassification": (
        "beit", "convnext", "convnextv2", "dinov2", "efficientnet", "mobilenet_v2",
        "mobilevit", "poolformer", "pvt", "regnet", "resnet", "segformer", "swin", "swinv2",
        "vit", "vit_msn",
    ),
    "ObjectDetection": ("detr", "yolos"),
    "ZeroShotImageClassification": ("clip", "siglip"),
    "AudioClassification": (
        "audio-spectrogram-transformer", "hubert", "sew", "unispeech-sat", "wav2vec2",
        "wav2vec2-conformer", "wavlm",
    ),
    "CTC": (
        "data2vec-audio", "hubert", "sew", "unispeech", "wav2vec2", "wav2vec2-conformer", "wavlm",
    ),
    "Seq2SeqLM": (
        "bart", "blenderbot", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5", "umt5",
    ),
    "SpeechSeq2Seq": ("moonshine", "whisper"),
}  # fmt: skip

# Tasks with generating models: their tokens are compared.
WRITING = ("Seq2SeqLM", "SpeechSeq2Seq")
