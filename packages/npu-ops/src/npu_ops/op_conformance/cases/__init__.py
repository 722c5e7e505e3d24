"""Cases as data: what is called with which tensors, and what may differ."""

from npu_ops.op_conformance.cases.case import CHECKS, LAYOUTS, Case
from npu_ops.op_conformance.cases.templates import interface_cases

__all__ = ["CHECKS", "LAYOUTS", "Case", "interface_cases"]
