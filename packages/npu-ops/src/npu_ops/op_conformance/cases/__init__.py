"""Cases as data: op, tensors, and allowed differences."""

from npu_ops.op_conformance.cases.case import CHECKS, LAYOUTS, Case
from npu_ops.op_conformance.cases.templates import interface_cases

__all__ = ["CHECKS", "LAYOUTS", "Case", "interface_cases"]
