"""Vision: convolutional nets, transformers over patches, and both together.

Models that take text beside an image are in multimodal.py.
"""

from __future__ import annotations

from typing import Any

from npu_compiler.suite.architecture import IMAGE, Architecture, from_config, image

__all__ = ["ARCHITECTURES", "PATCHES"]

PATCHES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": IMAGE, "patch_size": 16,
}  # fmt: skip


def _classifier(name: str, prefix: str, **settings: Any) -> Architecture:
    return _row(name, f"{prefix}ForImageClassification", f"{prefix}Config", **settings)


def _row(name: str, model: str, config: str, **settings: Any) -> Architecture:
    return Architecture(name, "vision", from_config(model, config, **settings), image)


ARCHITECTURES = (
    _classifier("vit", "ViT", **PATCHES),
    _classifier("beit", "Beit", use_relative_position_bias=True, **PATCHES),
    _classifier("dinov2", "Dinov2", **PATCHES),
    _row("dinov3_vit", "DINOv3ViTModel", "DINOv3ViTConfig", **PATCHES),
    _classifier(
        "swin",
        "Swin",
        image_size=IMAGE,
        embed_dim=16,
        depths=[1, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    _classifier(
        "swinv2",
        "Swinv2",
        image_size=IMAGE,
        embed_dim=16,
        depths=[1, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    _classifier("resnet", "ResNet", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2]),
    _classifier(
        "regnet",
        "RegNet",
        embedding_size=16,
        hidden_sizes=[16, 32, 32, 64],
        depths=[1, 1, 1, 1],
        groups_width=8,
    ),
    _classifier("convnext", "ConvNext", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
    _classifier("convnextv2", "ConvNextV2", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
    _classifier("mobilenet_v2", "MobileNetV2", depth_multiplier=0.25, image_size=IMAGE),
    _classifier(
        "efficientnet",
        "EfficientNet",
        image_size=IMAGE,
        width_coefficient=0.25,
        depth_coefficient=0.3,
        hidden_dim=320,
    ),
    _row(
        "segformer",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        hidden_sizes=[16, 32, 32, 64],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=32,
    ),
    _classifier(
        "poolformer",
        "PoolFormer",
        hidden_sizes=[16, 32, 32, 64],
        depths=[1, 1, 1, 1],
    ),
    _classifier(
        "mobilevit",
        "MobileViT",
        image_size=IMAGE,
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64],
        num_attention_heads=4,
    ),
    _classifier(
        "pvt",
        "Pvt",
        image_size=IMAGE,
        hidden_sizes=[16, 32, 32, 64],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
    ),
    _classifier(
        "focalnet",
        "FocalNet",
        image_size=IMAGE,
        embed_dim=16,
        depths=[1, 1],
        hidden_sizes=[16, 32],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
    ),
    _row(
        "dpt",
        "DPTForDepthEstimation",
        "DPTConfig",
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 16, 32, 32],
        fusion_hidden_size=32,
        **{**PATCHES, "num_hidden_layers": 4},
    ),
    _row(
        "yolos",
        "YolosForObjectDetection",
        "YolosConfig",
        num_detection_tokens=10,
        **{**PATCHES, "image_size": [IMAGE, IMAGE]},
    ),
)
