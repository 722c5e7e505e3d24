"""The one OpenVINO core of Python code in a process.

npu_runtime runs the device's programs with a core of its own in C++, which it also keeps to the end
of the process.
"""

from __future__ import annotations

import threading

import openvino as ov

__all__ = ["openvino_core"]

_lock = threading.Lock()
_core: ov.Core | None = None


def openvino_core() -> ov.Core:
    """Returns the process's core, which is made at the first call and never let go.

    On Linux the CPU plugin of each core gives the thread that first uses it a stack for signals. At
    the core's end it takes that memory away, and gives the thread the stack before only where its
    own is still the current one. Of two cores whose lives overlap, or of one that ends in another
    thread, a stack without memory is left, and the next signal, Ctrl-C say, ends the process
    (OpenVINO 2026.4.1). Where no core ends, the latest stack stays and has its memory.
    """
    global _core
    with _lock:  # a spare one would end while the other lives
        if _core is None:
            _core = ov.Core()
        return _core
