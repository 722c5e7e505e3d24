"""The memory of this process: how much there is, and giving back what is free.

Who watches it and why is in `torch_ops.py`; the device's memory is npu_runtime's to count.
"""

import ctypes
import mmap
from pathlib import Path

__all__ = ["resident_bytes", "return_memory"]

_STATM = Path("/proc/self/statm")


def return_memory() -> None:
    """Gives freed memory back to the system, where the C library can (glibc).

    Without it the next window fills what the last one left, and its growth is not seen.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = int(_STATM.read_text().split()[1])
    return pages * mmap.PAGESIZE
