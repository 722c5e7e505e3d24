"""A trace in memory: tracks with their slices in columns, instants, counters and flows.

Times are nanoseconds since the first event, as in viewers. An op takes about 30 bytes, a quarter of
its size in the file.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

__all__ = ["Counter", "Flow", "Flows", "Instant", "Names", "SliceRef", "Trace", "Track"]

_NO_ARGS: Mapping[str, Any] = {}
_DEVICE = re.compile(r"npu:(\d+)(?: \(.*\))?")


class Names:
    """Interned strings: a trace has many events and few names."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.words: list[str] = []

    def number(self, word: str) -> int:
        """Returns the number of a string; adds it if missing."""
        number = self._numbers.get(word)
        if number is None:
            number = self._numbers[word] = len(self.words)
            self.words.append(word)
        return number

    def find(self, word: str) -> int:
        """Returns the number of a string; -1 if it is missing."""
        return self._numbers.get(word, -1)


class Track:
    """A row of the timeline: a thread, a row of the process, or a queue of a device.

    Slices are sorted by their start, parents first.

    Args:
        pid: id of the process or device.
        tid: id of the row.
        names: strings of the columns, shared by the tracks of a trace.

    Attributes:
        process: title of the group of rows: "python train.py", "npu:0", "npu:0 (NOTE)".
        name: title of the row: "main thread", "programs".
        starts: of each slice, in nanoseconds.
        durations: of each slice, in nanoseconds.
        name_numbers: of each slice, in `names.words`.
        category_numbers: of each slice, in `names.words`.
        args_by_slice: details of slices, if any: keys, and values in the same order.
    """

    def __init__(self, pid: int, tid: int, names: Names) -> None:
        self.pid = pid
        self.tid = tid
        self.process = f"process {pid}"
        self.name = f"thread {tid}"
        self.names = names
        self.starts = array("q")
        self.durations = array("q")
        self.name_numbers = array("i")
        self.category_numbers = array("i")
        self.args_by_slice: dict[int, tuple[tuple[str, ...], tuple[Any, ...]]] = {}

    def __len__(self) -> int:
        """Number of slices."""
        return len(self.starts)

    def __iter__(self) -> Iterator[SliceRef]:
        """Yields the slices by their start, parents first."""
        return (SliceRef(self, index) for index in range(len(self.starts)))

    @property
    def device(self) -> int | None:
        """Index of the row's device; None for a row of the program."""
        found = _DEVICE.fullmatch(self.process)
        return int(found[1]) if found else None

    @cached_property
    def parents(self) -> array[int]:
        """Index of each slice's parent; -1 for root slices."""
        parents = array("i", bytes(4 * len(self.starts)))
        stack: list[int] = []
        ends: list[int] = []
        for index, (start, duration) in enumerate(zip(self.starts, self.durations, strict=True)):
            while ends and ends[-1] <= start:
                ends.pop()
                stack.pop()
            parents[index] = stack[-1] if stack else -1
            stack.append(index)
            ends.append(start + duration)
        return parents

    @cached_property
    def self_ns(self) -> array[int]:
        """Self time of each slice, which excludes its children."""
        own = array("q", self.durations)
        starts, durations = self.starts, self.durations
        for index, parent in enumerate(self.parents):
            if parent >= 0:
                end = min(starts[index] + durations[index], starts[parent] + durations[parent])
                own[parent] -= end - starts[index]
        return own

    def at(self, time_ns: int) -> SliceRef | None:
        """Returns the innermost slice at a time, or None; both ends are inclusive."""
        index = bisect_right(self.starts, time_ns) - 1
        while index >= 0:
            if time_ns <= self.starts[index] + self.durations[index]:
                return SliceRef(self, index)
            index = self.parents[index]
        return None


@dataclass(frozen=True, slots=True)
class SliceRef:
    """One slice of a track: an interval of time.

    Attributes:
        track: its row.
        index: its index in the row.
    """

    track: Track
    index: int

    @property
    def name(self) -> str:
        """Name of the op, program or layer: "aten::mm"."""
        return self.track.names.words[self.track.name_numbers[self.index]]

    @property
    def category(self) -> str:
        """Kind of work: "cpu_op", "program", "layer", "python_function", ..."""
        return self.track.names.words[self.track.category_numbers[self.index]]

    @property
    def start_ns(self) -> int:
        """Start, since the first event of the trace."""
        return self.track.starts[self.index]

    @property
    def duration_ns(self) -> int:
        """Duration in nanoseconds."""
        return self.track.durations[self.index]

    @property
    def end_ns(self) -> int:
        """End (exclusive)."""
        return self.start_ns + self.duration_ns

    @property
    def self_ns(self) -> int:
        """Self time, which excludes nested slices."""
        return self.track.self_ns[self.index]

    @property
    def args(self) -> Mapping[str, Any]:
        """Details; empty for most."""
        found = self.track.args_by_slice.get(self.index)
        return _NO_ARGS if found is None else dict(zip(*found, strict=True))

    @property
    def parent(self) -> SliceRef | None:
        """The enclosing slice; None for a root."""
        parent = self.track.parents[self.index]
        return None if parent < 0 else SliceRef(self.track, parent)

    def ancestors(self) -> Iterator[SliceRef]:
        """Yields the enclosing slices, the innermost first."""
        around = self.parent
        while around is not None:
            yield around
            around = around.parent


@dataclass(frozen=True, slots=True)
class Instant:
    """An event without a duration: a fallback, for example."""

    track: Track
    category: str
    name: str
    time_ns: int
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Counter:
    """Values of one series over time.

    Attributes:
        process: title of the process: "npu:0", "python train.py".
        name: name of the counter: "memory".
        series: name of the series: "allocated_bytes".
        times: time of each value, ascending.
        values: the values.
    """

    process: str
    name: str
    series: str
    times: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True, slots=True)
class Flow:
    """An arrow from a cause to its effect."""

    source: Track
    source_ns: int
    target: Track
    target_ns: int

    @property
    def cause(self) -> SliceRef | None:
        """The slice at the arrow's start."""
        return self.source.at(self.source_ns)

    @property
    def effect(self) -> SliceRef | None:
        """The slice at the arrow's end."""
        return self.target.at(self.target_ns)


class Flows:
    """The arrows with one name, in columns."""

    def __init__(self, tracks: list[Track]) -> None:
        self._tracks = tracks
        self._rows = array("i")
        self._times = array("q")

    def __len__(self) -> int:
        """Number of arrows."""
        return len(self._times) // 2

    def __iter__(self) -> Iterator[Flow]:
        """Yields the arrows in file order."""
        rows, times, tracks = self._rows, self._times, self._tracks
        for at in range(0, len(times), 2):
            yield Flow(tracks[rows[at]], times[at], tracks[rows[at + 1]], times[at + 1])

    def add(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        """Adds an arrow; each end is a track number and a time."""
        self._rows.extend((source[0], target[0]))
        self._times.extend((source[1], target[1]))

    def shift(self, by_ns: int) -> None:
        """Subtracts an offset from all times."""
        self._times = array("q", (time - by_ns for time in self._times))


@dataclass(slots=True)
class Trace:
    """A recorded trace.

    Attributes:
        path: its file.
        is_complete: whether the file is complete; the file of a killed program is not.
        base_ns: Unix time of the first event, the origin of times; None if the file lacks it.
        facts: metadata of the recorder: versions, problems, clocks.
        tracks: rows, in order of appearance.
        instants: marks, sorted by time.
        counters: values over time.
        flows: arrows by name: "launch", "forward to backward".
        event_count: number of slices, marks, samples and arrows.
    """

    path: Path
    is_complete: bool
    base_ns: int | None
    facts: Mapping[str, Any]
    tracks: list[Track]
    instants: list[Instant]
    counters: list[Counter]
    flows: Mapping[str, Flows]
    event_count: int

    @property
    def estimate(self) -> Mapping[str, Any]:
        """The compiler and its figures, with a `note`, if times are estimates; else empty."""
        told = self.facts.get("estimate")
        return told if isinstance(told, Mapping) else {}

    @property
    def host_tracks(self) -> list[Track]:
        """Rows of the program: threads, compile phases, prefill and decode."""
        return [track for track in self.tracks if track.device is None]

    @property
    def device_tracks(self) -> list[Track]:
        """Rows of devices: programs with their layers, copies."""
        return [track for track in self.tracks if track.device is not None]

    @property
    def start_ns(self) -> int:
        """Start of the first slice; other events may be earlier."""
        return min((track.starts[0] for track in self.tracks if len(track)), default=0)

    @property
    def end_ns(self) -> int:
        """End of the last slice."""
        return max(
            (
                start + duration
                for track in self.tracks
                for start, duration in zip(track.starts, track.durations, strict=True)
            ),
            default=0,
        )

    def slices(self, *categories: str) -> Iterator[SliceRef]:
        """Yields the slices of the given categories, or all, track by track."""
        if not categories:
            for track in self.tracks:
                yield from track
            return
        for track in self.tracks:
            wanted = {track.names.find(category) for category in categories}
            for index, number in enumerate(track.category_numbers):
                if number in wanted:
                    yield SliceRef(track, index)
