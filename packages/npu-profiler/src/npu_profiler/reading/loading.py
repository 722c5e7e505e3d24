"""Builds a trace from the events of a file."""

import os
from array import array
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from npu_profiler.reading.events import Event, PlainSlice, TraceEvents
from npu_profiler.reading.model import Counter, Flows, Instant, Names, Trace, Track

__all__ = ["adopt_torch_rows", "check_trace", "load_trace"]

_CATEGORIES = {"kernel": "program", "gpu_memcpy": "copy"}
_LAUNCHES = "ac2g"
_FALLBACK = "npu::fallback "


def adopt_torch_rows(tracks: list[Track], flows: dict[str, Flows], instants: list[Instant]) -> None:
    """Renames device events and arrows, marks fallbacks, and puts layers on their programs' rows.

    Args:
        tracks: rows, not yet sorted; those of other traces stay as they are.
        flows: arrows by name.
        instants: marks.
    """
    for track in tracks:
        instants += _fallbacks(track)
    if _LAUNCHES in flows and "launch" not in flows:
        flows["launch"] = flows.pop(_LAUNCHES)
    on_devices = [track for track in tracks if track.device is not None]
    renamed = [track for track in on_devices if _rename(track)]
    for track in on_devices:
        if track not in renamed and track.name.startswith("layers"):
            for target in renamed:
                if target.device == track.device:
                    _move_layers(track, target)


def _fallbacks(track: Track) -> list[Instant]:
    words = track.names.words
    numbers = {number for number, word in enumerate(words) if word.startswith(_FALLBACK)}
    if not numbers:
        return []
    return [
        Instant(
            track,
            "fallback",
            words[name].removeprefix(_FALLBACK),
            track.starts[index],
            {"duration_us": track.durations[index] / 1000},
        )
        for index, name in enumerate(track.name_numbers)
        if name in numbers
    ]


def _rename(track: Track) -> bool:
    numbers = {
        track.names.find(torch_name): track.names.number(name)
        for torch_name, name in _CATEGORIES.items()
    }
    if not any(number in numbers for number in track.category_numbers):
        return False
    track.category_numbers = array(
        "i", (numbers.get(number, number) for number in track.category_numbers)
    )
    return True


def _move_layers(source: Track, target: Track) -> None:
    """Moves layers within programs of another row to that row."""
    program = target.names.find("program")
    spans = sorted(
        (start, start + duration)
        for start, duration, category in zip(
            target.starts, target.durations, target.category_numbers, strict=True
        )
        if category == program
    )
    kept: list[int] = []
    order = sorted(range(len(source)), key=source.starts.__getitem__)
    at = 0
    for index in order:
        start = source.starts[index]
        while at < len(spans) and spans[at][1] <= start:
            at += 1
        if at < len(spans) and spans[at][0] <= start:
            _copy(source, index, target)
        else:
            kept.append(index)
    _keep(source, kept)


def _copy(source: Track, index: int, target: Track) -> None:
    if index in source.args_by_slice:
        target.args_by_slice[len(target)] = source.args_by_slice[index]
    target.starts.append(source.starts[index])
    target.durations.append(source.durations[index])
    target.name_numbers.append(source.name_numbers[index])
    target.category_numbers.append(source.category_numbers[index])


def _keep(track: Track, kept: list[int]) -> None:
    old = track.args_by_slice
    track.args_by_slice = {place: old[index] for place, index in enumerate(kept) if index in old}
    track.starts = array("q", map(track.starts.__getitem__, kept))
    track.durations = array("q", map(track.durations.__getitem__, kept))
    track.name_numbers = array("i", map(track.name_numbers.__getitem__, kept))
    track.category_numbers = array("i", map(track.category_numbers.__getitem__, kept))


# Longer texts are rarely repeated.
_MAX_SHARED_CHARS = 200


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Reads a trace file, whole or cut off, packed or not.

    Args:
        path: a file that `npu-profiler trace`, `npu_profiler.trace` or `npu_profiler.profile`
            wrote.

    Raises:
        TraceError: [trace-unreadable] it cannot be opened, [trace-invalid] it is not a trace.
    """
    events = TraceEvents(Path(path))
    loader = _Loader()
    for event in events:
        if isinstance(event, tuple):
            loader.add_plain(event)
        else:
            loader.add(event)
    return loader.finish(events)


def check_trace(path: str | os.PathLike[str]) -> None:
    """Raises for a file that is not a trace, judged by its head and first event.

    Args:
        path: a file, as for `load_trace`.

    Raises:
        TraceError: [trace-unreadable] it cannot be opened, [trace-invalid] it is not a trace.
    """
    next(iter(TraceEvents(Path(path))), None)


class _Loader:
    def __init__(self) -> None:
        self._names = Names()
        self._tracks: dict[tuple[int, int], Track] = {}
        self._plain_tracks: dict[tuple[str, str], Track] = {}
        self._order: list[Track] = []
        self._numbers: dict[Track, int] = {}
        self._processes: dict[int, str] = {}
        self._instants: list[Instant] = []
        self._counters: dict[tuple[int, str, str], tuple[array[int], array[float]]] = {}
        self._flows: dict[str, Flows] = defaultdict(lambda: Flows(self._order))
        self._open_flows: dict[Any, tuple[str, tuple[int, int]]] = {}
        self._shared: dict[Any, Any] = {}
        self._count = 0

    def add_plain(self, event: PlainSlice) -> None:
        category, name, pid, tid, start, duration = event
        track = self._plain_tracks.get((pid, tid))
        if track is None:
            track = self._plain_tracks[pid, tid] = self._track(int(pid), int(tid))
        # Three digits after the point: without it they are nanoseconds.
        track.starts.append(int(start.replace(".", "")))
        track.durations.append(int(duration.replace(".", "")))
        track.name_numbers.append(self._names.number(name))
        track.category_numbers.append(self._names.number(category))
        self._count += 1

    def add(self, event: Event) -> None:
        phase = event.get("ph")
        if phase == "M":
            self._add_metadata(event)
        elif phase == "X":
            self._add_slice(event)
        elif phase in ("i", "I"):
            self._add_instant(event)
        elif phase == "C":
            self._add_samples(event)
        elif phase in ("s", "f"):
            self._add_flow_end(event, phase)

    def finish(self, events: TraceEvents) -> Trace:
        for track in self._order:
            track.process = self._processes.get(track.pid, track.process)
        adopt_torch_rows(self._order, self._flows, self._instants)
        for track in self._order:
            _sort(track)
        first_ns = self._first_ns()
        for track in self._order:
            track.starts = _earlier(track.starts, first_ns)
        for flows in self._flows.values():
            flows.shift(first_ns)
        for times, _ in self._counters.values():
            times[:] = _earlier(times, first_ns)
        self._instants = sorted(
            (replace(mark, time_ns=mark.time_ns - first_ns) for mark in self._instants),
            key=lambda mark: mark.time_ns,
        )
        base_ns = events.head.get("baseTimeNanoseconds")
        facts = events.tail.get("otherData")
        return Trace(
            path=events.path,
            is_complete=events.is_complete,
            base_ns=base_ns + first_ns if isinstance(base_ns, int) else None,
            facts=facts if isinstance(facts, dict) else {},
            tracks=self._order,
            instants=self._instants,
            counters=self._finish_counters(),
            flows=dict(self._flows),
            event_count=self._count,
        )

    def _first_ns(self) -> int:
        found = [track.starts[0] for track in self._order if len(track)]
        found += [mark.time_ns for mark in self._instants]
        found += [min(times) for times, _ in self._counters.values()]
        return min(found, default=0)

    def _add_metadata(self, event: Event) -> None:
        args = event.get("args") or {}
        pid = _integer(event.get("pid"))
        if event.get("name") == "process_name":
            self._processes[pid] = str(args.get("name"))
        elif event.get("name") == "thread_name":
            self._track(pid, _integer(event.get("tid"))).name = str(args.get("name"))

    def _add_slice(self, event: Event) -> None:
        track = self._track(_integer(event.get("pid")), _integer(event.get("tid")))
        args = event.get("args")
        if args:
            track.args_by_slice[len(track.starts)] = self._share_args(args)
        track.starts.append(_ns(event.get("ts")))
        track.durations.append(max(_ns(event.get("dur")), 0))
        track.name_numbers.append(self._names.number(str(event.get("name", ""))))
        track.category_numbers.append(self._names.number(str(event.get("cat", ""))))
        self._count += 1

    def _add_instant(self, event: Event) -> None:
        track = self._track(_integer(event.get("pid")), _integer(event.get("tid")))
        self._instants.append(
            Instant(
                track,
                str(event.get("cat", "")),
                str(event.get("name", "")),
                _ns(event.get("ts")),
                event.get("args") or {},
            )
        )
        self._count += 1

    def _add_samples(self, event: Event) -> None:
        pid, name, time_ns = _integer(event.get("pid")), event.get("name"), _ns(event.get("ts"))
        for series, value in (event.get("args") or {}).items():
            if isinstance(value, int | float):
                key = (pid, str(name), series)
                times, values = self._counters.setdefault(key, (array("q"), array("d")))
                times.append(time_ns)
                values.append(value)
                self._count += 1

    def _add_flow_end(self, event: Event, phase: str) -> None:
        track = self._track(_integer(event.get("pid")), _integer(event.get("tid")))
        end = (self._numbers[track], _ns(event.get("ts")))
        other = self._open_flows.pop(event.get("id"), None)
        if other is None:
            self._open_flows[event.get("id")] = (phase, end)
            return
        source, target = (other[1], end) if phase == "f" else (end, other[1])
        self._flows[str(event.get("name"))].add(source, target)
        self._count += 1

    def _track(self, pid: int, tid: int) -> Track:
        track = self._tracks.get((pid, tid))
        if track is None:
            track = self._tracks[pid, tid] = Track(pid, tid, self._names)
            self._numbers[track] = len(self._order)
            self._order.append(track)
        return track

    def _share_args(self, args: dict[str, Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        # The decoder creates a new object for each key and text; layers repeat them a million
        # times.
        shared = self._shared
        keys = tuple(args)
        return shared.setdefault(keys, keys), tuple(
            shared.setdefault(value, value)
            if isinstance(value, str) and len(value) <= _MAX_SHARED_CHARS
            else value
            for value in args.values()
        )

    def _finish_counters(self) -> list[Counter]:
        counters = []
        for (pid, name, series), (times, values) in self._counters.items():
            order = sorted(range(len(times)), key=times.__getitem__)
            counters.append(
                Counter(
                    self._processes.get(pid, f"process {pid}"),
                    name,
                    series,
                    array("q", (times[index] for index in order)),
                    array("d", (values[index] for index in order)),
                )
            )
        return counters


def _sort(track: Track) -> None:
    """Sorts the slices of a track by start, longest first; equal ones keep the file's order."""
    starts, durations = track.starts, track.durations
    order = sorted(range(len(starts)), key=starts.__getitem__)
    at = 0
    while at < len(order):
        start = starts[order[at]]
        end = at + 1
        while end < len(order) and starts[order[end]] == start:
            end += 1
        if end - at > 1:
            order[at:end] = sorted(order[at:end], key=durations.__getitem__, reverse=True)
        at = end
    if all(index == place for place, index in enumerate(order)):
        return
    if track.args_by_slice:
        old = track.args_by_slice
        track.args_by_slice = {
            place: old[index] for place, index in enumerate(order) if index in old
        }
    track.starts = array("q", map(starts.__getitem__, order))
    track.durations = array("q", map(durations.__getitem__, order))
    track.name_numbers = array("i", map(track.name_numbers.__getitem__, order))
    track.category_numbers = array("i", map(track.category_numbers.__getitem__, order))


def _earlier(times: "array[int]", by_ns: int) -> "array[int]":
    return array("q", (time - by_ns for time in times))


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


def _ns(microseconds: object) -> int:
    return round(microseconds * 1000) if isinstance(microseconds, int | float) else 0
