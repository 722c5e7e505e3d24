"""Decides on which row of the picture an event stands, and what the rows are called.

The rows themselves are plain data, in `timeline.py`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npu_profiler.timeline import Slice, Track

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["DEVICE_PID", "Tracks"]

# Linux gives ids below 2**22 (PID_MAX_LIMIT): ours start there, so that they never meet.
DEVICE_PID = 1 << 22
_FIRST_OWN_TID = 1 << 22

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

Placed = list[tuple[Slice, "Event"]]


class Tracks:
    """Gives out tracks, each once.

    Args:
        pid: Of the program.
        program: What it is called.
        thread_names: By OS thread id.
    """

    def __init__(self, *, pid: int, program: str, thread_names: Mapping[int, str]) -> None:
        self._pid = pid
        self._process = f"python {program}"
        self._thread_names = thread_names
        self._tracks: dict[tuple[int, int], Track] = {}
        self._own_tids: dict[tuple[int, str, int], int] = {}
        # The program's process is in the picture also when nothing was heard of it.
        self.thread(pid)

    def all(self) -> tuple[Track, ...]:
        """Every track given out, in the order of the picture."""
        return tuple(
            sorted(self._tracks.values(), key=lambda t: (t.process_order, t.pid, t.order, t.tid))
        )

    def thread(self, thread_id: int) -> Track:
        """The row of a thread of the program."""
        track = self._tracks.get((self._pid, thread_id))
        if track is not None:
            return track
        is_main = thread_id == self._pid
        name = self._thread_names.get(thread_id, "")
        if name in ("", "python", "python3"):
            name = "main thread" if is_main else f"thread {thread_id}"
        order = _THREAD_ORDER if is_main else _THREAD_ORDER + 1
        return self._add(Track(self._pid, thread_id, name, self._process, order))

    def host(self, category: str, lane: int = 0) -> Track:
        """The row of the program's process for spans of `category`."""
        title, order = _host_title(category)
        tid = self._own_tid(self._pid, title, lane)
        return self._add(Track(self._pid, tid, _numbered(title, lane), self._process, order))

    def device(self, args: Mapping[str, Any], category: str = "program", lane: int = 0) -> Track:
        """The row of a device for spans of `category`; `args` says which device."""
        index = args.get("device_index", 0)
        index = index if isinstance(index, int) and 0 <= index < 1024 else 0
        pid = DEVICE_PID + index
        title, order = _DEVICE_TITLES.get(category, (category, len(_DEVICE_TITLES) + 1))
        tid = self._own_tid(pid, category, lane)
        return self._add(Track(pid, tid, _numbered(title, lane), f"npu:{index}", order, 1))

    def place_on_host(self, spans: Sequence["Event"]) -> Placed:
        """Puts spans on rows of the process, one per title, and more where they overlap."""
        by_title: dict[str, list[Event]] = defaultdict(list)
        for span in spans:
            by_title[_host_title(span.category)[0]].append(span)
        return [
            (_slice(self.host(span.category, lane), span), span)
            for group in by_title.values()
            for span, lane in _in_lanes(group)
        ]

    def place_on_device(self, spans: Sequence["Event"]) -> Placed:
        """Puts spans of one category on rows of their device."""
        return [
            (_slice(self.device(span.args, span.category, lane), span), span)
            for span, lane in _in_lanes(spans)
        ]

    def _own_tid(self, pid: int, category: str, lane: int) -> int:
        key = (pid, category, lane)
        return self._own_tids.setdefault(key, _FIRST_OWN_TID + len(self._own_tids))

    def _add(self, track: Track) -> Track:
        return self._tracks.setdefault((track.pid, track.tid), track)


def _slice(track: Track, span: "Event") -> Slice:
    return Slice(
        track, span.category, span.name, span.start_ns, max(span.duration_ns, 0), span.args
    )


def _host_title(category: str) -> tuple[str, int]:
    return _HOST_TITLES.get(category, (category, _OTHER_HOST_ORDER))


def _numbered(title: str, lane: int) -> str:
    return title if lane == 0 else f"{title} ({lane + 1})"


def _in_lanes(spans: Iterable["Event"]) -> list[tuple["Event", int]]:
    """Gives each span the first lane where it stands alone or within a span of its own thread."""
    lanes: list[list[tuple[int, int]]] = []
    placed = []
    for span in sorted(spans, key=lambda s: (s.start_ns, -s.duration_ns)):
        end_ns = span.start_ns + span.duration_ns
        for lane, stack in enumerate(lanes):
            while stack and stack[-1][0] <= span.start_ns:
                stack.pop()
            if not stack or (stack[-1][0] >= end_ns and stack[-1][1] == span.thread_id):
                stack.append((end_ns, span.thread_id))
                placed.append((span, lane))
                break
        else:
            lanes.append([(end_ns, span.thread_id)])
            placed.append((span, len(lanes) - 1))
    return placed
