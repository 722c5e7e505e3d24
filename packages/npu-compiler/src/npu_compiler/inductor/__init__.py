"""What torch's default Inductor needs to write code for tensors on npu.

torch.npu hands these names on when Inductor is first used: the entry point of group
`npu_runtime.inductor`. Programs for the device itself are npu_compiler.backend's work.
"""

from npu_compiler.inductor.codegen import (
    CppWrapperCodegen,
    PythonWrapperCodegen,
    Scheduling,
    WrapperFxCodegen,
)

__all__ = ["CppWrapperCodegen", "PythonWrapperCodegen", "Scheduling", "WrapperFxCodegen"]
