"""npu_compiler.estimate: the compiler's estimate of a run, and a lower bound on its time."""

from npu_compiler.roofline.bound import TimeBound
from npu_compiler.roofline.time_estimate import (
    TimeEstimate,
    estimate,
    estimate_folder,
    estimate_model,
)

__all__ = ["TimeBound", "TimeEstimate", "estimate", "estimate_folder", "estimate_model"]
