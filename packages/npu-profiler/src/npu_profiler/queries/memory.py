"""Memory over time, and the ops that hold it at its peak.

A trace has the sum of allocated bytes at each large change. The allocating op is the one that a
thread was in at that time. A fall is assumed to free the latest rise of the same size, or else the
latest rise.
"""

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass

from npu_profiler.queries.spans import host_activity
from npu_profiler.reading import Counter, SliceRef, Trace, Track
from npu_profiler.recording.summary import is_op

__all__ = [
    "DEVICE_SERIES",
    "Holder",
    "Peak",
    "Place",
    "Rise",
    "Whereabouts",
    "find_peak",
    "memory_curves",
    "rises",
]

DEVICE_SERIES = "allocated_bytes"

_BEFORE = "(at or before the first sample)"
_UNKNOWN = "(no op: Python, or a driver)"
_AUTOGRAD = "autograd::engine::evaluate_function: "
_PLACES = ("user_annotation", "module")
_PHASES = ("prefill", "decode", "load", "compile")


@dataclass(frozen=True, slots=True)
class Place:
    """A program's position at a moment: its outermost op, and the scope around it, or ""."""

    op: str
    within: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory held by one op in one place, allocated in `rises` of the curve."""

    place: Place
    size_bytes: int
    rises: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of a memory curve, the work at that time, and the holders, largest first."""

    time_ns: int
    size_bytes: int
    place: Place
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Rise:
    """A rise from one sample to the next, and the busiest thread's names and nanoseconds then."""

    start_ns: int
    end_ns: int
    size_bytes: int
    host: tuple[tuple[str, int], ...]


class Whereabouts:
    """Finds the work of a traced program at a moment."""

    def __init__(self, trace: Trace) -> None:
        self._threads: list[Track] = []
        self._phases: list[Track] = []
        for track in trace.host_tracks:
            words = track.names.words
            kinds = {words[number] for number in set(track.category_numbers)}
            if "cpu_op" in kinds:
                self._threads.append(track)
            elif kinds & set(_PHASES):
                self._phases.append(track)

    def at(self, time_ns: int) -> Place:
        """Returns the current work; of several threads, that of the latest op."""
        found = [track.at(time_ns) for track in self._threads]
        active = [item for item in found if item is not None]
        if not active:
            return Place(_UNKNOWN, self._phase(time_ns))
        innermost = max(active, key=lambda item: item.start_ns)
        around = [innermost, *innermost.ancestors()]
        op = next((item.name for item in reversed(around) if _is_op(item)), innermost.name)
        within = next((item.name for item in around if item.category in _PLACES), "")
        return Place(op, within or _backward(around) or self._phase(time_ns))

    def _phase(self, time_ns: int) -> str:
        for track in self._phases:
            found = track.at(time_ns)
            if found is not None:
                return found.name
        return ""


def memory_curves(trace: Trace) -> list[Counter]:
    """Returns the memory curves with samples, devices first."""
    found = [one for one in trace.counters if "bytes" in one.series and len(one.times)]
    return sorted(found, key=lambda one: (one.series != DEVICE_SERIES, one.process, one.series))


def find_peak(curve: Counter, whereabouts: Whereabouts) -> Peak:
    """Finds the peak and its holders; the curve must have at least one sample."""
    peak = max(range(len(curve.values)), key=curve.values.__getitem__)
    held: list[tuple[int, Place]] = [(int(curve.values[0]), Place(_BEFORE))]
    for index in range(1, peak + 1):
        change = int(curve.values[index]) - int(curve.values[index - 1])
        if change > 0:
            held.append((change, whereabouts.at(curve.times[index])))
        elif change < 0:
            _release(held, -change)
    size: Tally[Place] = Tally()
    count: Tally[Place] = Tally()
    for size_bytes, place in held:
        size[place] += size_bytes
        count[place] += 1
    return Peak(
        curve.times[peak],
        int(curve.values[peak]),
        whereabouts.at(curve.times[peak]),
        tuple(Holder(place, size[place], count[place]) for place, _ in size.most_common()),
    )


def rises(trace: Trace, curve: Counter, *, count: int) -> list[Rise]:
    """The largest rises of a trace's curve, from one sample to the next."""
    steps = [(curve.values[at] - curve.values[at - 1], at) for at in range(1, len(curve.values))]
    largest = sorted((step for step in steps if step[0] > 0), key=lambda step: -step[0])[:count]
    return [
        Rise(
            curve.times[at - 1],
            curve.times[at],
            int(size),
            _busiest(trace.host_tracks, curve.times[at - 1], curve.times[at]),
        )
        for size, at in largest
    ]


def _busiest(tracks: Sequence[Track], start_ns: int, end_ns: int) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for track in tracks:
        activity = [
            (name, ns)
            for name, ns in host_activity(track, start_ns, end_ns)
            if not name.startswith("(")
        ]
        if sum(ns for _, ns in activity) > sum(ns for _, ns in found):
            found = activity
    return tuple(found)


def _release(held: list[tuple[int, Place]], size_bytes: int) -> None:
    for at in range(len(held) - 1, -1, -1):
        if held[at][0] == size_bytes:
            del held[at]
            return
    while size_bytes > 0 and held:
        size, place = held.pop()
        if size > size_bytes:
            held.append((size - size_bytes, place))
        size_bytes -= size


def _backward(around: Sequence[SliceRef]) -> str:
    """Returns the autograd function among slices: "AddmmBackward0"."""
    found = next((item.name for item in around if item.name.startswith(_AUTOGRAD)), "")
    return found.removeprefix(_AUTOGRAD)


def _is_op(item: SliceRef) -> bool:
    return item.category == "cpu_op" and is_op(item.name)
