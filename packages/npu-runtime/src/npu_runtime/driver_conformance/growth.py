"""Whether doing something over and over holds more and more memory.

Used by the checks of the functions that destroy.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from npu_runtime.driver_conformance.registry import CheckFailure

__all__ = ["expect_no_growth"]

_BATCHES = 4
_ATTEMPTS = 3  # the system takes and gives back pages by itself; a leak shows each time
_LEAST_BYTES = 32  # what one lost object takes at least, with what malloc adds


def expect_no_growth(repeat: Callable[[], None], *, times: int, what: str) -> None:
    """Repeats something that makes and destroys; fails where each batch leaves memory behind.

    Args:
        repeat: makes one thing and destroys it.
        times: how often in each batch: so often that the smallest object would show.
        what: what is made, for the report.
    """
    for _ in range(times):
        repeat()  # caches and pools fill up
    grown = 0
    for _ in range(_ATTEMPTS):
        grown = _growth(repeat, times)
        if grown <= _BATCHES * times * _LEAST_BYTES:
            return
    raise CheckFailure(
        f"{_BATCHES * times} times making and destroying {what} left {grown:,} bytes behind"
    )


def _growth(repeat: Callable[[], None], times: int) -> int:
    """Bytes that all batches together left behind; 0 where one of them left none."""
    held = [_resident_bytes()]
    for _ in range(_BATCHES):
        for _ in range(times):
            repeat()
        held.append(_resident_bytes())
    always = all(after > before for before, after in pairwise(held))
    return held[-1] - held[0] if always else 0


def _resident_bytes() -> int:
    """Exact, which the count in /proc/self/statm is not."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/smaps_rollup has no line Rss.")
