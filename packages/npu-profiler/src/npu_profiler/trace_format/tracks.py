"""Assigns events to rows of the timeline, and names the rows."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from npu_profiler.trace_format.timeline import Sample, Slice, Track

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["DEVICE_PID", "OWN_TIDS", "Lanes", "Queues", "Tracks", "enqueued_by", "queued_us"]

# Only this many recent spans of a lane are checked.
_REMEMBERED = 4096

_Interval = tuple[int, int, int]


class Lanes:
    """The lanes of one category of spans."""

    def __init__(self) -> None:
        self._lanes: list[deque[_Interval]] = []

    def place(self, start_ns: int, end_ns: int, thread_id: int) -> int:
        """Returns the lane of a span, from 0; spans are sorted by end.

        Spans in a lane nest only if they have the same thread.
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


# Linux gives ids below 2**22 (PID_MAX_LIMIT): ours start there, so that they do not collide.
DEVICE_PID = 1 << 22
OWN_TIDS = 1 << 22

# Categories of spans with the titles of their rows; steps are at the top, threads at the bottom.
_STEPS = ("prefill and decode", 2)
_HOST_TITLES = {
    "recording": ("recording", 1),
    "llm": _STEPS,
    "prefill": _STEPS,
    "decode": _STEPS,
    "compile": ("compile phases", 3),
}
_OTHER_HOST_ORDER = 4
_THREAD_ORDER = 10
_DEVICE_TITLES = {"program": ("programs", 1), "copy": ("copies", 2)}


class Tracks:
    """Creates the tracks of a process, each once.

    `thread_name` gives the name of a thread by its OS id; empty if it has none.
    """

    def __init__(self, *, pid: int, program: str, thread_name: Callable[[int], str]) -> None:
        self._pid = pid
        self._process = f"python {program}"
        self._thread_name = thread_name
        self._tracks: dict[tuple[int, int], Track] = {}
        self._new: list[Track] = []
        self._own_tids: dict[tuple[int, str, int], int] = {}
        self._lanes: dict[tuple[int, str], Lanes] = defaultdict(Lanes)
        # The program's process is shown even without events.
        self.thread(pid)

    def take_new(self) -> list[Track]:
        """Returns tracks created or renamed since the last call."""
        new, self._new = self._new, []
        return new

    def rename_threads(self) -> None:
        """Reads the names of all threads again: a program may name them late."""
        for key, track in list(self._tracks.items()):
            if track.pid == self._pid and track.tid < OWN_TIDS:
                named = self._named_thread(track.tid)
                if named != track:
                    self._tracks[key] = named
                    self._new.append(named)

    def thread(self, thread_id: int) -> Track:
        """Returns the row of a thread of the program."""
        track = self._tracks.get((self._pid, thread_id))
        if track is not None:
            return track
        return self._add(self._named_thread(thread_id))

    def host(self, category: str, lane: int = 0) -> Track:
        """Returns the row of the program's process for spans of `category`."""
        title, order = _host_title(category)
        tid = self._own_tid(self._pid, title, lane)
        return self._add(Track(self._pid, tid, _numbered(title, lane), self._process, order))

    def device(self, args: Mapping[str, Any], category: str = "program", lane: int = 0) -> Track:
        """Returns the row of a device for spans of `category`; `args` has the device."""
        pid = _device_pid(args)
        title, order = _DEVICE_TITLES.get(category, (category, len(_DEVICE_TITLES) + 1))
        tid = self._own_tid(pid, category, lane)
        return self._add(
            Track(pid, tid, _numbered(title, lane), f"npu:{pid - DEVICE_PID}", order, 1)
        )

    def place_on_host(self, span: "Event") -> Slice:
        """Adds a span to the process's row of its category, or to another row on overlap."""
        lane = self._lane(self._pid, _host_title(span.category)[0], span)
        return _slice(self.host(span.category, lane), span)

    def place_on_device(self, span: "Event") -> Slice:
        """Adds a span to its device's row of its category."""
        pid = _device_pid(span.args)
        return _slice(
            self.device(span.args, span.category, self._lane(pid, span.category, span)), span
        )

    def _lane(self, pid: int, title: str, span: "Event") -> int:
        end_ns = span.start_ns + max(span.duration_ns, 0)
        return self._lanes[pid, title].place(span.start_ns, end_ns, span.thread_id)

    def _named_thread(self, thread_id: int) -> Track:
        is_main = thread_id == self._pid
        name = self._thread_name(thread_id)
        # The system names the main thread after the command until Python names it.
        if name in ("", "python", "python3") or (is_main and name == "npu-profiler"):
            name = "main thread" if is_main else f"thread {thread_id}"
        order = _THREAD_ORDER if is_main else _THREAD_ORDER + 1
        return Track(self._pid, thread_id, name, self._process, order)

    def _own_tid(self, pid: int, category: str, lane: int) -> int:
        key = (pid, category, lane)
        return self._own_tids.setdefault(key, OWN_TIDS + len(self._own_tids))

    def _add(self, track: Track) -> Track:
        known = self._tracks.setdefault((track.pid, track.tid), track)
        if known is track:
            self._new.append(track)
        return known


def _slice(track: Track, span: "Event") -> Slice:
    return Slice(
        track, span.category, span.name, span.start_ns, max(span.duration_ns, 0), span.args
    )


def _host_title(category: str) -> tuple[str, int]:
    return _HOST_TITLES.get(category, (category, _OTHER_HOST_ORDER))


def _numbered(title: str, lane: int) -> str:
    return title if lane == 0 else f"{title} ({lane + 1})"


def _device_pid(args: Mapping[str, Any]) -> int:
    index = args.get("device_index", 0)
    return DEVICE_PID + (index if isinstance(index, int) and 0 <= index < 1024 else 0)


_Run = tuple[int, int]


def enqueued_by(span: "Event") -> _Run | None:
    """Returns the thread that enqueued a program, and when; None if it ran synchronously."""
    thread_id, time_ns = span.args.get("enqueue_thread_id"), span.args.get("enqueue_ns")
    if isinstance(thread_id, int) and isinstance(time_ns, int):
        return thread_id, time_ns
    return None


def queued_us(span: "Event") -> float | None:
    """Returns how long a program waited in its stream; None if it was not enqueued."""
    run = enqueued_by(span)
    return None if run is None else max(span.start_ns - run[1], 0) / 1000


class Queues:
    """The queues of all streams across chunks of a recording, on rows of devices."""

    def __init__(self, tracks: Tracks) -> None:
        self._tracks = tracks
        self._waiting: set[_Run] = set()
        # A short run may end before the call that enqueued it does; others were enqueued before the
        # recording, so their call was not recorded.
        self._ended: set[_Run] = set()
        self._depths: dict[str, int] = {}

    def follow(self, events: Iterable["Event"]) -> list[Sample]:
        """Returns the depth after each change, sorted by time, from events in order of arrival."""
        changes: list[tuple[int, int, Mapping[str, Any]]] = []
        for event in events:
            run = enqueued_by(event)
            if run is None:
                continue
            if event.category == "launch":
                changes += self._enqueue(run, event)
            elif event.category == "program":
                changes += self._end(run, event)
        changes.sort(key=lambda change: change[:2])
        return [self._sample(*change) for change in changes]

    def _enqueue(self, run: _Run, event: "Event") -> list[tuple[int, int, Mapping[str, Any]]]:
        if run in self._ended:
            self._ended.remove(run)
            return []
        self._waiting.add(run)
        return [(run[1], 1, event.args)]

    def _end(self, run: _Run, event: "Event") -> list[tuple[int, int, Mapping[str, Any]]]:
        end_ns = event.start_ns + max(event.duration_ns, 0)
        if run in self._waiting:
            self._waiting.remove(run)
            return [(end_ns, -1, event.args)]
        self._ended.add(run)
        return [(run[1], 1, event.args), (end_ns, -1, event.args)]

    def _sample(self, time_ns: int, change: int, args: Mapping[str, Any]) -> Sample:
        track = self._tracks.device(args)
        counter = f"queue of stream {args.get('stream', 0)}"
        key = f"{track.pid} {counter}"
        self._depths[key] = self._depths.get(key, 0) + change
        return Sample(track, counter, "programs", time_ns, self._depths[key])
