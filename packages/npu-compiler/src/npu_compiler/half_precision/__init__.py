"""npu_compiler.check_half: what half precision does to a model, call by call, without an NPU."""

from npu_compiler.half_precision.check import check_half, check_half_file
from npu_compiler.half_precision.report import HalfCall, HalfPrecision

__all__ = ["HalfCall", "HalfPrecision", "check_half", "check_half_file"]
