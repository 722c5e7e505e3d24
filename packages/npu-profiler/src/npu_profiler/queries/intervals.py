"""Spans of time: what a device was busy with, where it waited, and what a thread did meanwhile."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from npu_profiler.queries.launches import launched_program
from npu_profiler.reading import SliceRef, Trace, Track

__all__ = ["Gap", "Interval", "busy_intervals", "device_gaps", "host_activity", "merge", "total_ns"]

Interval = tuple[int, int]

NOTHING_RECORDED = "(no op: Python, or waiting)"


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a device ran nothing, between two programs.

    Attributes:
        before: the program that ended it.
        host: what the thread that launched that program did meanwhile: name and nanoseconds, most
            first.
    """

    device: int
    start_ns: int
    end_ns: int
    before: str
    host: tuple[tuple[str, int], ...]

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time without overlaps, by start."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def total_ns(intervals: Iterable[Interval]) -> int:
    """The length of intervals together."""
    return sum(end - start for start, end in intervals)


def busy_intervals(trace: Trace) -> dict[int, list[Interval]]:
    """When each device ran at least one program."""
    programs: dict[int, list[Interval]] = {}
    for program in trace.slices("program"):
        device = program.track.device or 0
        programs.setdefault(device, []).append((program.start_ns, program.end_ns))
    return {device: merge(programs[device]) for device in sorted(programs)}


def device_gaps(trace: Trace, busy: dict[int, list[Interval]], *, count: int) -> list[Gap]:
    """The longest gaps of all devices, and what the host did in them.

    Args:
        trace: where they are.
        busy: when each device was busy.
        count: how many.
    """
    gaps = [
        (end - start, device, start, end)
        for device, intervals in busy.items()
        for (_, start), (end, _) in pairwise(intervals)
    ]
    longest = sorted(gaps, key=lambda gap: (-gap[0], gap[2]))[:count]
    # Of a program that no op launched the thread is known all the same.
    by_start: dict[tuple[int, int], tuple[Track, str]] = {}
    for arrow in trace.flows.get("launch", ()):
        program = launched_program(arrow)
        if program is not None:
            key = (program.track.device or 0, program.start_ns)
            by_start.setdefault(key, (arrow.source, program.name))
    found = []
    for _, device, start, end in longest:
        thread, name = by_start.get((device, end), (None, ""))
        host = host_activity(thread, start, end) if thread is not None else []
        found.append(Gap(device, start, end, name, tuple(host)))
    return found


def host_activity(track: Track, start_ns: int, end_ns: int) -> list[tuple[str, int]]:
    """What a thread did in an interval: own time of each name, the most first."""
    spent: Counter[str] = Counter()
    covered = 0
    first = bisect_right(track.starts, start_ns)
    around = track.at(start_ns)
    open_before = [] if around is None else [around, *around.ancestors()]
    last = bisect_right(track.starts, end_ns)
    inside = [SliceRef(track, index) for index in range(first, last)]
    known = {item.index for item in open_before}
    items = [*open_before, *(item for item in inside if item.index not in known)]
    for item in items:
        duration = min(item.end_ns, end_ns) - max(item.start_ns, start_ns)
        if duration <= 0:
            continue
        spent[item.name] += duration
        parent = item.parent
        if parent is None:
            covered += duration
        else:
            spent[parent.name] -= duration
    spent[NOTHING_RECORDED] += max(end_ns - start_ns - covered, 0)
    return [(name, ns) for name, ns in spent.most_common() if ns > 0]
