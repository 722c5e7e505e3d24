"""How much memory is left to this process.

Who watches it and why is in `torch_ops.py`; the device's memory is npu_runtime's to count.
"""

import re
from pathlib import Path

__all__ = ["available_bytes"]

_MEMINFO = Path("/proc/meminfo")


def available_bytes() -> int:
    """Memory that the machine can still give without swapping."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text(), re.MULTILINE)
    return int(found.group(1)) << 10 if found else 0
