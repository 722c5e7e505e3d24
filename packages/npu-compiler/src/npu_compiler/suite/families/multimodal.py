"""Models of text and images: two-tower models, and vision-language models."""

from __future__ import annotations

from typing import Any

import torch

from npu_compiler.suite.families.architecture import image, padded, rows
from npu_compiler.suite.families.encoders import ENCODER
from npu_compiler.suite.families.text_decoders import DECODER
from npu_compiler.suite.families.vision import PATCHES

__all__ = ["ARCHITECTURES"]

_IMAGE_TOKEN = 100
_TEXT_TOWER: dict[str, Any] = {
    **ENCODER,
    "max_position_embeddings": 32,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "projection_dim": 32,
}
_VISION_TOWER: dict[str, Any] = {**PATCHES, "projection_dim": 32}

_row = rows("multimodal", padded)


def _pair() -> dict[str, torch.Tensor]:
    """Returns equal numbers of texts and images."""
    return {**padded(), **image()}


def _two_towers() -> dict[str, torch.Tensor]:
    """Returns texts that end in CLIP's pooling token (before a mask), and images."""
    inputs = _pair()
    inputs["input_ids"][:, -1] = 2
    inputs["input_ids"][0, int(inputs["attention_mask"][0].sum()) - 1] = 2
    return inputs


def _caption() -> dict[str, torch.Tensor]:
    """Returns texts with a placeholder for each patch of 16 by 16 pixels, and images."""
    pixels = image()["pixel_values"]
    patches = (pixels.shape[-1] // 16) ** 2
    ids = torch.randint(3, 90, (len(pixels), patches + 8))
    ids[:, 2 : patches + 2] = _IMAGE_TOKEN
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": pixels,
    }


ARCHITECTURES = (
    _row(
        "clip",
        "CLIPModel",
        "CLIPConfig",
        _two_towers,
        text_config=_TEXT_TOWER,
        vision_config=_VISION_TOWER,
        projection_dim=32,
    ),
    _row(
        "siglip",
        "SiglipModel",
        "SiglipConfig",
        _pair,
        text_config={**_TEXT_TOWER, "projection_size": 64},
        vision_config=PATCHES,
    ),
    _row(
        "blip",
        "BlipForConditionalGeneration",
        "BlipConfig",
        _pair,
        text_config={
            **_TEXT_TOWER,
            "encoder_hidden_size": 64,
            "use_cache": False,
            "sep_token_id": 2,
        },
        vision_config=PATCHES,
    ),
    _row(
        "llava",
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        _caption,
        text_config={"model_type": "llama", **DECODER},
        vision_config={"model_type": "clip_vision_model", **PATCHES},
        image_token_id=_IMAGE_TOKEN,
        vision_feature_layer=-1,
        image_seq_length=16,
    ),
    _row(
        "owlvit",
        "OwlViTModel",
        "OwlViTConfig",
        _two_towers,
        text_config=_TEXT_TOWER,
        vision_config=_VISION_TOWER,
        projection_dim=32,
    ),
)
