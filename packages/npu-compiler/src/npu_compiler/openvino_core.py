"""The single OpenVINO core that Python code shares in a process.

npu_runtime runs the device's programs with a separate core in C++, which also lives until the
process ends.
"""

from __future__ import annotations

import threading

import openvino as ov

__all__ = ["openvino_core"]

_lock = threading.Lock()
_core: ov.Core | None = None


def openvino_core() -> ov.Core:
    """Returns the process's core, which the first call creates and which is never released.

    On Linux the CPU plugin of each core gives the thread that first uses it a stack for signals.
    When the core is destroyed, it frees that memory, and restores the previous stack only if its
    own is still current. Overlapping cores, or a core destroyed in another thread, leave a freed
    stack behind, and the next signal, such as Ctrl-C, ends the process (OpenVINO 2026.4.1). If no
    core is destroyed, the latest stack stays valid.
    """
    global _core
    with _lock:  # a spare core would be destroyed while the other is alive
        if _core is None:
            _core = ov.Core()
        return _core
