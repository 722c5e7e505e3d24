"""Lowering of captured decoder steps to kernel programs (npu_ops.kernel_programs)."""

from npu_compiler.kernel_programs.lowering import Lowered, lower_to_kernels

__all__ = ["Lowered", "lower_to_kernels"]
