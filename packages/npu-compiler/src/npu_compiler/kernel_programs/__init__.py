"""From a captured decoder step to a kernel program (npu_ops.kernel_programs).

Data passes `selection` (calls to instructions; `views`, `calls`, `attention`, `scores`,
`experts`, `rotary` and `activations` say what a call is), `fusion`, and `placement`, in `lowering`.
"""

from npu_compiler.kernel_programs.lowering import Lowered, lower_to_kernels

__all__ = ["Lowered", "lower_to_kernels"]
