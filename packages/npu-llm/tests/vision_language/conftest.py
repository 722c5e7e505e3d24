"""Small vision-language models with random weights, one per family."""

from __future__ import annotations

import pytest
import torch
import transformers

IMAGE, VIDEO = 90, 91
_TEXT = {
    "vocab_size": 99, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 300,
    "head_dim": 6,
}  # fmt: skip
_EYES = {
    "hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
_SIGLIP = _EYES | {"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14}
_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
_QWEN_TEXT = _TEXT | {"hidden_size": 32, "head_dim": 8, "rope_parameters": _ROPE}
_QWEN_EYES = {"num_heads": 4, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}
_MARKS = {"image_token_id": IMAGE, "video_token_id": VIDEO}
_TILED = _EYES | {"image_size": 32, "patch_size": 8}
FAMILIES = {
    "Llava": {
        "vision_config": _SIGLIP, "text_config": _TEXT | {"model_type": "llama"},
        "image_token_index": IMAGE, "vision_feature_select_strategy": "full",
    },
    "Idefics3": {
        "vision_config": _TILED,
        "text_config": _TEXT | {"model_type": "llama", "pad_token_id": 0},
        "image_token_id": IMAGE, "scale_factor": 2, "pad_token_id": 0,
    },
    "SmolVLM": {
        "vision_config": _TILED,
        "text_config": _TEXT | {"model_type": "llama", "pad_token_id": 0},
        "image_token_id": IMAGE, "scale_factor": 2, "pad_token_id": 0,
    },
    "Gemma3": {
        "vision_config": _SIGLIP | {"image_size": 56},
        "text_config": _TEXT | {
            "sliding_window": 9, "query_pre_attn_scalar": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "mm_tokens_per_image": 4, "image_token_index": IMAGE,
    },
    "Qwen2VL": {
        "vision_config": _QWEN_EYES | {
            "depth": 2, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2,
        },
        "text_config": _QWEN_TEXT, **_MARKS,
    },
    "Qwen2_5_VL": {
        "vision_config": _QWEN_EYES | {
            "depth": 3, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32,
            "window_size": 16, "fullatt_block_indexes": [1],
        },
        "text_config": _QWEN_TEXT, **_MARKS,
    },
    "InternVL": {
        "vision_config": _EYES | {"image_size": [32, 32], "patch_size": [8, 8]},
        "text_config": _TEXT | {"model_type": "qwen2"}, "image_token_id": IMAGE,
        "downsample_ratio": 0.5,
    },
    "PaliGemma": {
        "vision_config": _SIGLIP | {"projection_dim": 24},
        "text_config": _TEXT | {
            "model_type": "gemma2", "query_pre_attn_scalar": 6, "sliding_window": 7,
        },
        "image_token_index": IMAGE, "projection_dim": 24,
    },
    "LlavaOnevision": {
        "vision_config": _SIGLIP, "text_config": _TEXT | {"model_type": "qwen2"},
        "image_token_index": IMAGE, "video_token_index": VIDEO,
        "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
    },
}  # fmt: skip


def made(family, **changes):
    """Returns transformers' model of a family."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**(FAMILIES[family] | changes))
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config)
    for parameter in model.parameters():
        # So that tokens differ by more than what two orders of summation do.
        parameter.data.mul_(4 if parameter.dim() > 1 else 1)
    return model.eval()


@pytest.fixture(scope="session")
def family():
    """family(name, **changes of its config): transformers' model."""
    return made


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("looking-cache")
