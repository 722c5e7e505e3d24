"""Hands on the names of npu-profiler: one timeline of Python, aten ops and device programs.

Holds no code: what records is in `recorder.py`, what a trace is made of in `timeline.py`, the
commands are in `cli.py`. `profile` is torch's class made larger (`torch_profile.py`), and imports
torch when it is asked for: the command must not import it before the program does.
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
