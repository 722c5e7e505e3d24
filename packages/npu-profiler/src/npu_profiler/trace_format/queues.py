"""Follows how many programs each stream of a device has taken over and not yet finished.

A run that was enqueued is reported twice: as the call that enqueued it, and as the program when it
has ended.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from npu_profiler.trace_format.timeline import Sample
from npu_profiler.trace_format.tracks import Tracks

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["Queues", "enqueued_by", "queued_us"]

_Run = tuple[int, int]


def enqueued_by(span: "Event") -> _Run | None:
    """The thread that enqueued a program, and when; None for one that its own thread ran."""
    thread_id, time_ns = span.args.get("enqueue_thread_id"), span.args.get("enqueue_ns")
    if isinstance(thread_id, int) and isinstance(time_ns, int):
        return thread_id, time_ns
    return None


def queued_us(span: "Event") -> float | None:
    """How long a program waited on its stream until it began; None if it was not enqueued."""
    run = enqueued_by(span)
    return None if run is None else max(span.start_ns - run[1], 0) / 1000


class Queues:
    """The queues of all streams, from piece to piece of a recording.

    Args:
        tracks: gives out the rows of devices.
    """

    def __init__(self, tracks: Tracks) -> None:
        self._tracks = tracks
        self._waiting: set[_Run] = set()
        # A short run may end before the call that enqueued it does; others were enqueued before
        # the recording, and their call never comes.
        self._ended: set[_Run] = set()
        self._depths: dict[str, int] = {}

    def follow(self, events: Iterable["Event"]) -> list[Sample]:
        """Returns the depths after each change, in the order of time.

        Args:
            events: launches and programs, in the order in which they were told.
        """
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
