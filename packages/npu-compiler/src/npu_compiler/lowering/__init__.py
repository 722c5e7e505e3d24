"""Lowering of FX graphs of aten calls to OpenVINO models, and the converter registry."""

from npu_compiler.graph.nodes import op_name
from npu_compiler.graph.origins import node_origins, python_line, source_line
from npu_compiler.lowering.context import Context, Refused
from npu_compiler.lowering.custom import custom_op, define_op
from npu_compiler.lowering.lower import LoweredModel, lower
from npu_compiler.lowering.registry import (
    Converter,
    find_converter,
    is_foreign,
    missing_converter,
    near_matches,
    registered_ops,
)
from npu_compiler.lowering.registry import converter as register_fx_node_converter

__all__ = [
    "Context",
    "Converter",
    "LoweredModel",
    "Refused",
    "custom_op",
    "define_op",
    "find_converter",
    "is_foreign",
    "lower",
    "missing_converter",
    "near_matches",
    "node_origins",
    "op_name",
    "python_line",
    "register_fx_node_converter",
    "registered_ops",
    "source_line",
]
