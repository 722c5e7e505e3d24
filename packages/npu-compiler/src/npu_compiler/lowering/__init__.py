"""Lowering: FX graphs of aten calls to OpenVINO models, and the table of converters.

Capture and partitioning live in npu_compiler, running in npu_runtime.
"""

from npu_compiler.lowering.context import Context, Refused
from npu_compiler.lowering.lower import LoweredModel, lower, source_line
from npu_compiler.lowering.registry import (
    Converter,
    converter,
    find_converter,
    near_matches,
    op_name,
    registered_ops,
)

__all__ = [
    "Context",
    "Converter",
    "LoweredModel",
    "Refused",
    "converter",
    "find_converter",
    "lower",
    "near_matches",
    "op_name",
    "registered_ops",
    "source_line",
]
