"""timm's models by their published definitions, with random weights: one small variant per family.

They are measured only on request (``--timm``), and timm is imported when one is built.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

from npu_compiler.errors import SuiteError
from npu_compiler.suite.families.architecture import Architecture, drawn

__all__ = ["ARCHITECTURES", "FAMILY"]

FAMILY = "timm"

# These are built for one image size.
_SIZED = (
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "test_vit_relpos",
    "eva02_tiny_patch14_224",
    "convit_tiny",
    "coat_lite_tiny",
    "coatnet_nano_rw_224",
    "pit_ti_224",
    "xcit_nano_12_p16_224",
    "tnt_s_patch16_224",
    "twins_svt_small",
    "visformer_tiny",
    "levit_128s",
    "swin_tiny_patch4_window7_224",
    "swinv2_cr_tiny_ns_224",
    "mixer_s32_224",
    "efficientformerv2_s0",
    "efficientvit_m0",
    "gcvit_xxtiny",
    "nest_tiny_jx",
    "hiera_tiny_224",
    "mvitv2_tiny",
    "mobilevit_xxs",
    "repvit_m0_9",
    "swiftformer_xs",
    "botnet26t_256",
    "sequencer2d_s",
)
_FREE = (
    "tiny_vit_5m_224",
    "crossvit_tiny_240",
    "efficientvit_b0",
    "efficientvim_m1",
    "pvt_v2_b0",
    "poolformer_s12",
    "edgenext_xx_small",
    "fastvit_t8",
    "inception_next_atto",
    "mambaout_femto",
    "convnext_atto",
    "resnet10t",
    "resnetv2_18",
    "nf_regnet_b0",
    "regnetx_002",
    "resnest14d",
    "res2next50",
    "skresnet18",
    "legacy_seresnet18",
    "selecsls42",
    "dla46_c",
    "ese_vovnet19b_slim",
    "hrnet_w18_small",
    "hgnetv2_b0",
    "cs3darknet_focus_s",
    "cspnext_tiny",
    "efficientnet_lite0",
    "mobilenetv3_small_050",
    "hardcorenas_a",
    "rexnet_100",
    "ghostnet_050",
    "repghostnet_050",
    "fasternet_t0",
    "shvit_s1",
    "iformer_t",
    "lowformer_b0",
)

# Keeps the declared ops alive.
_declared: list[torch.library.Library] = []


def _row(variant: str, *, is_sized: bool) -> Architecture:
    def build() -> torch.nn.Module:
        settings: dict[str, Any] = {"img_size": 2 * drawn().image} if is_sized else {}
        model: torch.nn.Module = _create_model()(variant, **settings)
        return model

    return Architecture(variant, FAMILY, build, _images)


def _images() -> dict[str, torch.Tensor]:
    """Returns images of twice the usual height and width: many of the models downsample by 32."""
    size = 2 * drawn().image
    return {"x": torch.randn(drawn().batch, 3, size, size)}


def _create_model() -> Callable[..., Any]:
    try:
        create: Callable[..., Any] = _timm().create_model
    except ImportError as failure:
        raise SuiteError(
            f"npu_compiler.suite: timm must be installed for --timm, got {failure}. "
            "Install it: pip install timm.",
            code="suite-timm",
        ) from failure
    return create


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except RuntimeError as failure:
        if "torchvision::" not in str(failure):
            raise
    # torchvision is built for another torch and cannot load its ops, which the models do not call.
    ops: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        ops.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(ops)
    for module in [name for name in sys.modules if name.split(".")[0] in ("timm", "torchvision")]:
        del sys.modules[module]
    return importlib.import_module("timm")


ARCHITECTURES = (
    *(_row(variant, is_sized=True) for variant in _SIZED),
    *(_row(variant, is_sized=False) for variant in _FREE),
)
