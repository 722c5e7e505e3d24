"""The standard op interface: names, signatures, and torch functions; cases/ calls them."""

from npu_ops.op_conformance.interface.operator import (
    Operator,
    aten_operator,
    left_out,
    load_operators,
    operator_named,
)

__all__ = ["Operator", "aten_operator", "left_out", "load_operators", "operator_named"]
