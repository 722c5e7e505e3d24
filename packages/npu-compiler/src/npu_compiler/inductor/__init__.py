"""What torch's default Inductor needs to write code for tensors on npu.

torch.npu hands these names on when Inductor is first used: the entry point of group
`npu_runtime.inductor`.
"""

from npu_compiler.inductor.codegen import (
    CppWrapperCodegen,
    PythonWrapperCodegen,
    Scheduling,
    WrapperFxCodegen,
)

__all__ = ["CppWrapperCodegen", "PythonWrapperCodegen", "Scheduling", "WrapperFxCodegen"]
