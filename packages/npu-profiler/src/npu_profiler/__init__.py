"""Hands on the names of npu-profiler: one timeline of Python, aten ops and device programs.

Holds no code: what records is in `recorder.py`, what a trace is made of in `timeline.py`, the
commands are in `cli.py`.
"""

from npu_profiler.errors import TraceError
from npu_profiler.recorder import Recording, TraceOptions, trace
from npu_profiler.summary import OpTime, Summary

__all__ = ["OpTime", "Recording", "Summary", "TraceError", "TraceOptions", "trace"]
