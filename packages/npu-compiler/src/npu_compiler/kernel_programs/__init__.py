"""From a captured decoder step to a kernel program (npu_ops.kernel_programs)."""

from npu_compiler.kernel_programs.lowering import Lowered, lower_to_kernels

__all__ = ["Lowered", "lower_to_kernels"]
