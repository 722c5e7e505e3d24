"""How far torch's clock stands from ours, measured within the recording itself.

Torch stamps its events with the processor's time stamp counter, mapped to the Unix epoch when the
recording ends; `npu_runtime.observe` stamps with the system clock. This module compares the two;
the marks that it compares are set and found in npu_profiler.torch_side.torch_windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ClockAlignment", "ClockMark", "align"]


@dataclass(frozen=True, slots=True)
class ClockMark:
    """One event of torch's, with the system clock read right before and right after it.

    Attributes:
        before_ns: system clock before the event, Unix epoch.
        after_ns: system clock after the event, Unix epoch.
        torch_ns: what torch says when the event began, Unix epoch.
    """

    before_ns: int
    after_ns: int
    torch_ns: int


@dataclass(frozen=True, slots=True)
class ClockAlignment:
    """What to subtract from torch's times, and how wrong that may be.

    Attributes:
        offset_ns: Torch's clock minus the system clock; 0 when the marks do not contradict that.
        error_ns: the true offset is at most this far away; None when there were no marks.
        marks: how many marks that rests on.
    """

    offset_ns: int
    error_ns: int | None
    marks: int


def align(marks: Sequence[ClockMark]) -> ClockAlignment:
    """Finds the offset that all marks allow.

    A mark says: the offset lies within [torch - after, torch - before]. The narrowest statement is
    the intersection over all marks; when the clocks drifted there is none, and the median of the
    middles is taken with the largest deviation as its error.

    Args:
        marks: any number, in any order.
    """
    if not marks:
        return ClockAlignment(0, None, 0)
    low = max(mark.torch_ns - mark.after_ns for mark in marks)
    high = min(mark.torch_ns - mark.before_ns for mark in marks)
    if low <= high:
        if low <= 0 <= high:
            return ClockAlignment(0, max(-low, high), len(marks))
        middle = (low + high) // 2
        return ClockAlignment(middle, high - middle, len(marks))
    middles = sorted(mark.torch_ns - (mark.before_ns + mark.after_ns) // 2 for mark in marks)
    median = middles[len(middles) // 2]
    error = max(
        max(
            abs(mark.torch_ns - mark.before_ns - median),
            abs(mark.torch_ns - mark.after_ns - median),
        )
        for mark in marks
    )
    return ClockAlignment(median, error, len(marks))
