"""Parts of a trace: tracks, slices, instants, samples and flows, all immutable.

Times are Unix epoch nanoseconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Flow",
    "FlowEnd",
    "Instant",
    "Piece",
    "Sample",
    "Slice",
    "Track",
    "nested",
]


@dataclass(frozen=True, slots=True)
class Track:
    """A row of the timeline: a thread of the program, or a queue of a device."""

    pid: int  # process id; ids of devices are above every id of Linux
    tid: int  # OS id of the thread; unique within `pid`
    name: str  # title of the row
    process: str  # title of the group of rows
    order: int = 0  # sort order of rows within a process
    process_order: int = 0  # sort order of groups


@dataclass(frozen=True, slots=True)
class Slice:
    """An interval of time on one track. Slices of one track nest and never cross."""

    track: Track
    category: str
    name: str
    start_ns: int
    duration_ns: int
    args: Mapping[str, Any] | None = None

    @property
    def end_ns(self) -> int:
        """End (exclusive)."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class Instant:
    """An event without a duration on one track."""

    track: Track
    category: str
    name: str
    time_ns: int
    args: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a counter, shown with the process of `track`."""

    track: Track
    counter: str
    series: str
    time_ns: int
    value: float


@dataclass(frozen=True, slots=True)
class FlowEnd:
    """An end of an arrow: a time within a slice of `track`."""

    track: Track
    time_ns: int


@dataclass(frozen=True, slots=True)
class Flow:
    """An arrow from a cause to its effect."""

    category: str
    name: str
    source: FlowEnd
    target: FlowEnd


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of a recording."""

    slices: Sequence[Slice] = ()
    instants: Sequence[Instant] = ()
    samples: Sequence[Sample] = ()
    flows: Sequence[Flow] = ()

    @property
    def event_count(self) -> int:
        """Number of events; an arrow counts once."""
        return len(self.slices) + len(self.instants) + len(self.samples) + len(self.flows)


def nested(slices: Iterable[Slice]) -> list[Slice]:
    """Sorts slices by (start, longest first) and shortens those that end after their parent.

    A thread's track has times of two clocks (torch's and ours), which differ by a fraction of a
    microsecond, so a child may seem to end after its parent. Viewers drop such slices, so they are
    shortened.
    """
    # Two stable sorts: tuple keys would take as much memory as the slices.
    ordered = sorted(slices, key=lambda item: item.duration_ns, reverse=True)
    ordered.sort(key=lambda item: item.start_ns)
    open_ends: dict[Track, list[int]] = {}
    for index, item in enumerate(ordered):
        ends = open_ends.setdefault(item.track, [])
        while ends and ends[-1] <= item.start_ns:
            ends.pop()
        end_ns = item.end_ns
        if ends and end_ns > ends[-1]:
            end_ns = ends[-1]
            ordered[index] = Slice(
                item.track,
                item.category,
                item.name,
                item.start_ns,
                end_ns - item.start_ns,
                item.args,
            )
        ends.append(end_ns)
    return ordered
