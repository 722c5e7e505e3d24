"""The API of npu-profiler: one timeline of Python, aten ops and device programs.

`profile` extends torch's class of that name. It is imported lazily because it imports torch, which
the command must not do before the program.
"""

from typing import TYPE_CHECKING

from npu_command.import_hooks import lazy_names
from npu_profiler.errors import TraceError
from npu_profiler.recording.recorder import Recording, TraceOptions, trace
from npu_profiler.recording.recorder import mark_step as step
from npu_profiler.recording.summary import OpTime, Summary

if TYPE_CHECKING:
    from npu_profiler import dynamic_profile
    from npu_profiler.recording.torch_profile import NPUProfiler, profile

__all__ = [
    "NPUProfiler",
    "OpTime",
    "Recording",
    "Summary",
    "TraceError",
    "TraceOptions",
    "dynamic_profile",
    "profile",
    "step",
    "trace",
]

_HOMES = {
    "NPUProfiler": "recording.torch_profile",
    "dynamic_profile": None,
    "profile": "recording.torch_profile",
}

__getattr__ = lazy_names(__name__, _HOMES)
