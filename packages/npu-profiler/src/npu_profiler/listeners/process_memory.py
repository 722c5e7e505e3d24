"""How much memory this process has, and how much is left to it.

The device's memory is counted by npu_runtime.
"""

import os
import re
from pathlib import Path

__all__ = ["available_bytes", "resident_bytes"]

_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")


def available_bytes() -> int:
    """Memory that the machine can still give without swapping."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text(), re.MULTILINE)
    return int(found.group(1)) << 10 if found else 0


def resident_bytes() -> tuple[int, int]:
    """Memory of this process: all of it that is in RAM, and the part that is not a file's."""
    _, resident, shared, *_ = map(int, _STATM.read_text().split())
    page = os.sysconf("SC_PAGE_SIZE")
    return resident * page, (resident - shared) * page
