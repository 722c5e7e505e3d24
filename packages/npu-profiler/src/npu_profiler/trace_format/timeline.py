"""What a trace is made of: tracks, slices, instants, samples and flows, all immutable.

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
    """A row of the picture: a thread of the program, or a queue of a device."""

    pid: int  # the process's id; a device has one above every id that Linux gives
    tid: int  # the thread's OS id; unique within `pid`
    name: str  # what the row is called
    process: str  # what the group of rows is called
    order: int = 0  # rows of one process are shown by rising order
    process_order: int = 0  # groups are shown by rising process_order


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took time on one track. Slices of one track nest and never cross."""

    track: Track
    category: str
    name: str
    start_ns: int
    duration_ns: int
    args: Mapping[str, Any] | None = None

    @property
    def end_ns(self) -> int:
        """The first nanosecond after it."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class Instant:
    """Something that happened at one moment on one track."""

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
    """Where an arrow starts or ends: a moment within a slice of `track`."""

    track: Track
    time_ns: int


@dataclass(frozen=True, slots=True)
class Flow:
    """An arrow from the slice that caused to the slice that was caused."""

    category: str
    name: str
    source: FlowEnd
    target: FlowEnd


@dataclass(frozen=True, slots=True)
class Piece:
    """What happened in a part of a recording."""

    slices: Sequence[Slice] = ()
    instants: Sequence[Instant] = ()
    samples: Sequence[Sample] = ()
    flows: Sequence[Flow] = ()

    @property
    def event_count(self) -> int:
        """Number of things in it, an arrow counted once."""
        return len(self.slices) + len(self.instants) + len(self.samples) + len(self.flows)


def nested(slices: Iterable[Slice]) -> list[Slice]:
    """Sorts slices by (start, longest first) and cuts those that end after their parent.

    Two clocks meet on a thread's track (torch's and ours), a fraction of a microsecond apart, so a
    child may seem to outlive its parent by that much. Viewers drop such slices; a shorter one is
    the lesser evil.
    """
    # Two stable sorts, as pairs for keys would take as much memory as the slices.
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
