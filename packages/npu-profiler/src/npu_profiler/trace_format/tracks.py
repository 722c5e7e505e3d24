"""Decides on which row of the picture an event stands, and what the rows are called."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from npu_profiler.trace_format.lanes import Lanes
from npu_profiler.trace_format.timeline import Slice, Track

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["DEVICE_PID", "OWN_TIDS", "Tracks"]

# Linux gives ids below 2**22 (PID_MAX_LIMIT): ours start there, so that they never meet.
DEVICE_PID = 1 << 22
OWN_TIDS = 1 << 22

# Categories of spans with the title of their row; steps stand at the top, threads at the bottom.
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
    """Gives out tracks, each once.

    Args:
        pid: of the program.
        program: what it is called.
        thread_name: gives the name of a thread by its OS id; empty if it has none.
    """

    def __init__(self, *, pid: int, program: str, thread_name: Callable[[int], str]) -> None:
        self._pid = pid
        self._process = f"python {program}"
        self._thread_name = thread_name
        self._tracks: dict[tuple[int, int], Track] = {}
        self._new: list[Track] = []
        self._own_tids: dict[tuple[int, str, int], int] = {}
        self._lanes: dict[tuple[int, str], Lanes] = defaultdict(Lanes)
        # The program's process is in the picture also when nothing was heard of it.
        self.thread(pid)

    def take_new(self) -> list[Track]:
        """Tracks that were given out or got another name since the last call."""
        new, self._new = self._new, []
        return new

    def rename_threads(self) -> None:
        """Asks for the names of all threads again: a program may name them late."""
        for key, track in list(self._tracks.items()):
            if track.pid == self._pid and track.tid < OWN_TIDS:
                named = self._named_thread(track.tid)
                if named != track:
                    self._tracks[key] = named
                    self._new.append(named)

    def thread(self, thread_id: int) -> Track:
        """The row of a thread of the program."""
        track = self._tracks.get((self._pid, thread_id))
        if track is not None:
            return track
        return self._add(self._named_thread(thread_id))

    def host(self, category: str, lane: int = 0) -> Track:
        """The row of the program's process for spans of `category`."""
        title, order = _host_title(category)
        tid = self._own_tid(self._pid, title, lane)
        return self._add(Track(self._pid, tid, _numbered(title, lane), self._process, order))

    def device(self, args: Mapping[str, Any], category: str = "program", lane: int = 0) -> Track:
        """The row of a device for spans of `category`; `args` says which device."""
        pid = _device_pid(args)
        title, order = _DEVICE_TITLES.get(category, (category, len(_DEVICE_TITLES) + 1))
        tid = self._own_tid(pid, category, lane)
        return self._add(
            Track(pid, tid, _numbered(title, lane), f"npu:{pid - DEVICE_PID}", order, 1)
        )

    def place_on_host(self, span: "Event") -> Slice:
        """Puts a span on the row of the process for its kind, or on another where they overlap."""
        lane = self._lane(self._pid, _host_title(span.category)[0], span)
        return _slice(self.host(span.category, lane), span)

    def place_on_device(self, span: "Event") -> Slice:
        """Puts a span on the row of its device for its category."""
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
        # The system calls the main thread by the command until Python names it.
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
