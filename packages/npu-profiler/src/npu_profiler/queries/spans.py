"""Spans of time: launches, busy and idle times of a device, and a program's steps."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from npu_profiler.reading import Flow, SliceRef, Trace, Track

__all__ = [
    "Gap",
    "Interval",
    "Launch",
    "Step",
    "busy_intervals",
    "device_gaps",
    "find_steps",
    "host_activity",
    "launched_program",
    "launches",
    "merge",
    "total_ns",
]


class Launch(NamedTuple):
    """A run of a program, and the innermost slice that launched it."""

    cause: SliceRef
    program: SliceRef

    def causes(self) -> Iterator[SliceRef]:
        """Yields all slices that were open at the launch, the innermost first."""
        yield self.cause
        yield from self.cause.ancestors()


def launches(trace: Trace) -> list[Launch]:
    """Returns the launches with both ends recorded, in the order of the file."""
    found = []
    for arrow in trace.flows.get("launch", ()):
        program, cause = launched_program(arrow), arrow.cause
        if cause is not None and program is not None:
            found.append(Launch(cause, program))
    return found


def launched_program(arrow: Flow) -> SliceRef | None:
    """Returns the program run of a launch."""
    program = arrow.effect
    # A layer may begin at the same time as its program.
    while program is not None and program.category == "layer":
        program = program.parent
    return program


Interval = tuple[int, int]

NOTHING_RECORDED = "(no op: Python, or waiting)"


@dataclass(frozen=True, slots=True)
class Gap:
    """An idle time of a device between two programs."""

    device: int
    start_ns: int
    end_ns: int
    before: str  # the program that ended it
    # Activity of the launching thread meanwhile: name and nanoseconds, longest first.
    host: tuple[tuple[str, int], ...]

    @property
    def duration_ns(self) -> int:
        """The duration in nanoseconds."""
        return self.end_ns - self.start_ns


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Merges overlapping intervals; returns them by start."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def total_ns(intervals: Iterable[Interval]) -> int:
    """Returns the total length of intervals."""
    return sum(end - start for start, end in intervals)


def busy_intervals(trace: Trace) -> dict[int, list[Interval]]:
    """Returns the intervals in which each device ran at least one program."""
    programs: dict[int, list[Interval]] = {}
    for program in trace.slices("program"):
        device = program.track.device or 0
        programs.setdefault(device, []).append((program.start_ns, program.end_ns))
    return {device: merge(programs[device]) for device in sorted(programs)}


def device_gaps(trace: Trace, busy: dict[int, list[Interval]], *, count: int) -> list[Gap]:
    """Returns the longest idle gaps of all devices, with the host's activity in them."""
    gaps = [
        (end - start, device, start, end)
        for device, intervals in busy.items()
        for (_, start), (end, _) in pairwise(intervals)
    ]
    longest = sorted(gaps, key=lambda gap: (-gap[0], gap[2]))[:count]
    # The thread is known even for programs that no op launched.
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
    """Returns a thread's self time by name in an interval, the longest first."""
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


_PROFILER_STEP = re.compile(r"ProfilerStep[#*]?\d*")
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#.+")


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its kind ("decode", "optimizer step", ...), and its number of that kind from 1."""

    kind: str
    number: int
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """The duration in nanoseconds."""
        return self.end_ns - self.start_ns


def find_steps(trace: Trace) -> list[Step]:
    """Returns the steps by start; empty if the trace has none."""
    answers = [item for item in trace.slices("prefill", "decode") if not _is_in_another(item)]
    if answers:
        return _numbered([(item.category, item.start_ns, item.end_ns) for item in answers])
    named = list(trace.slices("user_annotation"))
    profiled = [item for item in named if _PROFILER_STEP.fullmatch(item.name)]
    if profiled:
        return _numbered([("step", item.start_ns, item.end_ns) for item in profiled])
    optimized = [item for item in named if _OPTIMIZER_STEP.fullmatch(item.name)]
    if not optimized:
        return []
    # Several optimizers may alternate within one step: the most frequent one counts.
    names = [item.name for item in optimized]
    chosen = max(sorted(set(names)), key=names.count)
    ends = sorted(item.end_ns for item in optimized if item.name == chosen)
    begin = min((track.starts[0] for track in {item.track for item in optimized}), default=0)
    return _numbered([("optimizer step", start, end) for start, end in pairwise([begin, *ends])])


def _is_in_another(item: SliceRef) -> bool:
    return any(around.category in ("prefill", "decode") for around in item.ancestors())


def _numbered(found: list[tuple[str, int, int]]) -> list[Step]:
    count: dict[str, int] = {}
    steps = []
    for kind, start, end in sorted(found, key=lambda step: step[1]):
        count[kind] = count.get(kind, 0) + 1
        steps.append(Step(kind, count[kind], start, end))
    return steps
