"""Compilers of NPU vendors, which compile for chips that are not in this machine."""

from npu_compiler.target_compiler.compile import TargetCompiler, target_compiler
from npu_compiler.target_compiler.installed import compile_if_installed
from npu_compiler.target_compiler.intel import TARGETS
from npu_compiler.target_compiler.report import ESTIMATE_NOTE, Estimate, TargetReport
from npu_compiler.target_compiler.targets import (
    GraphProgram,
    Target,
    TargetProgram,
    Vendor,
    find_target,
    vendor_of,
)

__all__ = [
    "ESTIMATE_NOTE",
    "TARGETS",
    "Estimate",
    "GraphProgram",
    "Target",
    "TargetCompiler",
    "TargetProgram",
    "TargetReport",
    "Vendor",
    "compile_if_installed",
    "find_target",
    "target_compiler",
    "vendor_of",
]
