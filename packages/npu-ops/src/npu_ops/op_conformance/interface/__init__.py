"""The standard op interface: names, signatures, and what each is in torch; cases/ calls them."""

from npu_ops.op_conformance.interface.operator import (
    Operator,
    aten_operator,
    left_out,
    load_operators,
    operator_named,
)

__all__ = ["Operator", "aten_operator", "left_out", "load_operators", "operator_named"]
