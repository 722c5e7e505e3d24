"""npu_compiler.estimate: how fast an NPU cannot be, by published figures; no NPU is needed."""

from npu_compiler.time_bound.bound import TimeBound, bound_folder, bound_model, estimate

__all__ = ["TimeBound", "bound_folder", "bound_model", "estimate"]
