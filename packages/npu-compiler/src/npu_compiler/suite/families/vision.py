"""Vision models: convolutional nets, transformers over patches, and hybrids."""

from __future__ import annotations

from typing import Any

from npu_compiler.suite.families.architecture import (
    ENCODER_DECODER,
    IMAGE,
    Architecture,
    image,
    rows,
)

__all__ = ["ARCHITECTURES", "PATCHES"]

PATCHES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": IMAGE, "patch_size": 16,
}  # fmt: skip
# Four stages, as in most nets with stages.
_STAGES: dict[str, Any] = {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1]}
_PYRAMID: dict[str, Any] = {**_STAGES, "num_attention_heads": [1, 2, 2, 4]}
_CVT: dict[str, Any] = {
    "qkv_bias": [True] * 2, "kernel_qkv": [3] * 2, "padding_kv": [1] * 2, "stride_kv": [2] * 2,
    "padding_q": [1] * 2, "stride_q": [1] * 2, "qkv_projection_method": ["dw_bn"] * 2,
    "attention_drop_rate": [0.0] * 2, "drop_rate": [0.0] * 2, "drop_path_rate": [0.0] * 2,
}  # fmt: skip


def _classifier(name: str, prefix: str, **settings: Any) -> Architecture:
    return _row(name, f"{prefix}ForImageClassification", f"{prefix}Config", **settings)


_row = rows("vision", image)


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
    _classifier("regnet", "RegNet", embedding_size=16, groups_width=8, **_STAGES),
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
        decoder_hidden_size=32,
        **_PYRAMID,
    ),
    _classifier("poolformer", "PoolFormer", **_STAGES),
    _classifier(
        "mobilevit",
        "MobileViT",
        image_size=IMAGE,
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64],
        num_attention_heads=4,
    ),
    _classifier("pvt", "Pvt", image_size=IMAGE, **_PYRAMID),
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
    _classifier(
        "bit", "Bit", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], num_groups=4
    ),
    _classifier(
        "cvt",
        "Cvt",
        embed_dim=[16, 32],
        num_heads=[1, 2],
        depth=[1, 2],
        patch_sizes=[7, 3],
        patch_stride=[4, 2],
        patch_padding=[2, 1],
        mlp_ratio=[2.0, 2.0],
        cls_token=[False, True],
        **_CVT,
    ),
    _classifier("data2vec_vision", "Data2VecVision", use_relative_position_bias=True, **PATCHES),
    _classifier("deit", "DeiT", **PATCHES),
    _classifier("dinov2_with_registers", "Dinov2WithRegisters", **PATCHES),
    _classifier("ijepa", "IJepa", **PATCHES),
    _classifier("vit_msn", "ViTMSN", **PATCHES),
    _row("siglip_vision", "SiglipVisionModel", "SiglipVisionConfig", **PATCHES),
    _row(
        "vitdet",
        "VitDetModel",
        "VitDetConfig",
        mlp_ratio=2,
        window_size=2,
        window_block_indices=[0],
        **PATCHES,
    ),
    _classifier(
        "hiera",
        "Hiera",
        image_size=[IMAGE, IMAGE],
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 4, 4],
    ),
    _classifier(
        "levit",
        "Levit",
        image_size=IMAGE,
        hidden_sizes=[16, 32, 64],
        num_attention_heads=[2, 4, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
    ),
    _classifier("mobilenet_v1", "MobileNetV1", depth_multiplier=0.25, image_size=IMAGE),
    _classifier(
        "mobilevitv2",
        "MobileViTV2",
        image_size=IMAGE,
        width_multiplier=0.25,
        output_stride=16,
        n_attn_blocks=[1, 1, 1],
    ),
    _classifier("pvt_v2", "PvtV2", image_size=IMAGE, **_PYRAMID),
    _classifier(
        "swiftformer",
        "SwiftFormer",
        image_size=IMAGE,
        depths=[1, 1, 1, 1],
        embed_dims=[16, 16, 32, 32],
    ),
    _classifier(
        "textnet",
        "TextNet",
        image_size=[IMAGE, IMAGE],
        stem_out_channels=16,
        conv_layer_kernel_sizes=[[[3, 3]], [[3, 1]], [[1, 3]], [[3, 3]]],
        conv_layer_strides=[[2], [2], [2], [2]],
        hidden_sizes=[16, 16, 32, 32, 64],
    ),
    _row("dinov3_convnext", "DINOv3ConvNextModel", "DINOv3ConvNextConfig", **_STAGES),
    _row("glpn", "GLPNForDepthEstimation", "GLPNConfig", decoder_hidden_size=32, **_PYRAMID),
    _row(
        "depth_anything",
        "DepthAnythingForDepthEstimation",
        "DepthAnythingConfig",
        backbone_config={
            "model_type": "dinov2",
            "out_indices": [1, 2],
            "reshape_hidden_states": False,
            **PATCHES,
        },
        reassemble_hidden_size=64,
        neck_hidden_sizes=[16, 32],
        reassemble_factors=[2, 1],
        fusion_hidden_size=32,
        head_hidden_size=16,
        patch_size=16,
    ),
    _row(
        "upernet",
        "UperNetForSemanticSegmentation",
        "UperNetConfig",
        backbone_config={
            "model_type": "convnext",
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
            **_STAGES,
        },
        hidden_size=32,
        auxiliary_in_channels=32,
        auxiliary_channels=16,
    ),
    _row(
        "detr",
        "DetrForObjectDetection",
        "DetrConfig",
        backbone_config={
            "model_type": "resnet",
            "embedding_size": 16,
            "hidden_sizes": [16, 32],
            "depths": [1, 1],
            "out_features": ["stage2"],
        },
        num_queries=16,
        **ENCODER_DECODER,
    ),
)
