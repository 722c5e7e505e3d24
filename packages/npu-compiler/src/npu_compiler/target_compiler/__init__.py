"""Compilers of NPU vendors, which compile for a chip that need not be in this machine."""

from npu_compiler.target_compiler.compile import TargetCompiler, target_compiler
from npu_compiler.target_compiler.report import Estimate, TargetReport
from npu_compiler.target_compiler.targets import TARGETS, Target, find_target

__all__ = [
    "TARGETS",
    "Estimate",
    "Target",
    "TargetCompiler",
    "TargetReport",
    "find_target",
    "target_compiler",
]
