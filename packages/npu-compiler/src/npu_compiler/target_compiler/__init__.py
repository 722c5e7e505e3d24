"""Compilers of NPU vendors, which compile for a chip that need not be in this machine."""

from npu_compiler.target_compiler.compile import TargetCompiler, target_compiler
from npu_compiler.target_compiler.installed import compile_if_installed
from npu_compiler.target_compiler.report import ESTIMATE_NOTE, Estimate, TargetReport
from npu_compiler.target_compiler.targets import TARGETS, Target, find_target

__all__ = [
    "ESTIMATE_NOTE",
    "TARGETS",
    "Estimate",
    "Target",
    "TargetCompiler",
    "TargetReport",
    "compile_if_installed",
    "find_target",
    "target_compiler",
]
