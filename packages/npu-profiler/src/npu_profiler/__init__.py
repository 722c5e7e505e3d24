"""The names of npu-profiler: one timeline of Python, aten ops and device programs.

`profile` extends torch's class of that name. It is imported when it is first used, because it
imports torch, which the command must not do before the program does.
"""

from typing import TYPE_CHECKING, Any

from npu_profiler.errors import TraceError
from npu_profiler.recording.recorder import Recording, TraceOptions, trace
from npu_profiler.recording.recorder import mark_step as step
from npu_profiler.recording.summary import OpTime, Summary

if TYPE_CHECKING:
    from npu_profiler.recording.torch_profile import profile

__all__ = [
    "OpTime",
    "Recording",
    "Summary",
    "TraceError",
    "TraceOptions",
    "profile",
    "step",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name == "profile":
        from npu_profiler.recording.torch_profile import profile

        return profile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
