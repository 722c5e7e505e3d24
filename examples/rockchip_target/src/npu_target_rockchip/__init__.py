"""Rockchip's NPUs as targets: rknn-toolkit2 compiles, and its simulator computes."""

from npu_target_rockchip.compiler import RockchipCompiler

__all__ = ["RockchipCompiler"]
