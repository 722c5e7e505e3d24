"""Finds a row for spans that may overlap: the first lane where a span stands alone or nests.

Spans come when they end, so an inner one comes before the one around it.
"""

from collections import deque

__all__ = ["Lanes"]

# What ended longer ago than so many spans of its lane is not looked at again.
_REMEMBERED = 4096

_Interval = tuple[int, int, int]


class Lanes:
    """The lanes of one kind of spans."""

    def __init__(self) -> None:
        self._lanes: list[deque[_Interval]] = []

    def place(self, start_ns: int, end_ns: int, thread_id: int) -> int:
        """Returns the lane of a span, from 0; spans come in the order of their ends.

        Args:
            start_ns: when it began.
            end_ns: when it ended.
            thread_id: its thread: a lane holds a span within another only of one thread.
        """
        number = next(
            (n for n, lane in enumerate(self._lanes) if _takes(lane, start_ns, end_ns, thread_id)),
            len(self._lanes),
        )
        if number == len(self._lanes):
            self._lanes.append(deque(maxlen=_REMEMBERED))
        lane = self._lanes[number]
        while lane and lane[-1][0] >= start_ns and lane[-1][1] <= end_ns:
            lane.pop()
        lane.append((start_ns, end_ns, thread_id))
        return number


def _takes(lane: deque[_Interval], start_ns: int, end_ns: int, thread_id: int) -> bool:
    for begin, end, owner in reversed(lane):
        if end <= start_ns:
            return True
        is_within = begin >= start_ns and end <= end_ns
        if begin < end_ns and not (is_within and owner == thread_id):
            return False
    return True
