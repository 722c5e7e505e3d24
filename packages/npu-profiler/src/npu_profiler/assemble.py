"""Builds one timeline from what torch and the runtime told: tracks, clocks, arrows.

Holds no listening (`torch_ops.py`, `device_events.py`) and no writing (`chrome.py`).
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npu_profiler.clock import ClockAlignment, align
from npu_profiler.launches import Launched, connect_launches
from npu_profiler.timeline import (
    Flow,
    FlowEnd,
    Instant,
    Sample,
    Slice,
    Timeline,
    nested,
)
from npu_profiler.torch_ops import OpWindow
from npu_profiler.tracks import Tracks

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["Recorded", "assemble"]

# Python calls of ours, at the edges of a recording with stacks.
_OWN_CALL = re.compile(r"(^|/)npu_profiler/\w+\.py\(|^torch/(autograd|profiler)/profiler\.py\(")

# Calls of the runtime, with their verb: they stand on the row of the thread that made them.
_CALLS = {"launch": "launch", "sync": "synchronize"}
# "kernel" is an op of npu's own on the host: its row has torch's record of the op already.
_PLACED = {*_CALLS, "program", "copy", "fallback", "kernel"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """All that was heard in one recording.

    Attributes:
        program: What ran, for the name of its process.
        pid: Its process id.
        start_ns: Unix epoch, as all times.
        windows: What torch recorded.
        events: What `npu_runtime.observe` told.
        thread_names: Names by OS thread id.
        own_thread_id: A thread of ours, which is no part of the program.
        facts: What else a reader should know.
    """

    program: str
    pid: int
    start_ns: int
    end_ns: int
    windows: Sequence[OpWindow] = ()
    events: Sequence["Event"] = ()
    thread_names: Mapping[int, str] = field(default_factory=dict)
    own_thread_id: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def assemble(recorded: Recorded) -> Timeline:
    """Puts everything on tracks and on one clock, and draws the arrows.

    Args:
        recorded: What was heard; the ops of its windows are taken out of it.
    """
    names = dict(recorded.thread_names)
    for window in recorded.windows:
        for thread_id, name in window.recorded.thread_names.items():
            names.setdefault(thread_id, name)
    tracks = Tracks(pid=recorded.pid, program=recorded.program, thread_names=names)
    alignment = align([mark for window in recorded.windows for mark in window.marks])

    ops, flows = _place_ops(recorded, alignment, tracks)
    spans = [event for event in recorded.events if event.kind == "span"]
    programs = tracks.place_on_device([span for span in spans if span.category == "program"])
    copies = tracks.place_on_device([span for span in spans if span.category == "copy"])
    calls = [_call(span, tracks) for span in spans if span.category in _CALLS]
    phases = tracks.place_on_host([span for span in spans if span.category not in _PLACED])
    launches, arrows = connect_launches(
        [*ops, *calls, *(item for item, _ in phases)],
        callers={id(item): span.thread_id for item, span in phases},
        programs=[_launched(item, span) for item, span in programs],
        thread_track=tracks.thread,
    )
    slices = [*ops, *calls, *launches, *_gaps(recorded, tracks)]
    slices += (item for placed in (programs, copies, phases) for item, _ in placed)
    return _finish(recorded, alignment, tracks, slices, [*flows, *arrows])


def _finish(
    recorded: Recorded,
    alignment: ClockAlignment,
    tracks: Tracks,
    slices: list[Slice],
    flows: list[Flow],
) -> Timeline:
    instants = _instants(recorded.events, tracks)
    samples = _samples(recorded.events, tracks)
    starts = [item.start_ns for item in slices]
    starts += [mark.time_ns for mark in instants] + [sample.time_ns for sample in samples]
    facts = {
        **recorded.facts,
        "clock_offset_ns": alignment.offset_ns,
        "clock_error_ns": alignment.error_ns,
        "clock_marks": alignment.marks,
        "unreadable_torch_events": sum(w.recorded.unreadable for w in recorded.windows),
    }
    return Timeline(
        start_ns=min([recorded.start_ns, *starts]),
        end_ns=recorded.end_ns,
        tracks=tracks.all(),
        slices=tuple(nested(slices)),
        instants=tuple(instants),
        samples=tuple(samples),
        flows=tuple(sorted(flows, key=lambda flow: flow.source.time_ns)),
        facts=facts,
    )


def _place_ops(
    recorded: Recorded, alignment: ClockAlignment, tracks: Tracks
) -> tuple[list[Slice], list[Flow]]:
    slices = []
    flows = []
    shift = alignment.offset_ns
    for window in recorded.windows:
        # Emptied while it is read: two forms of a million ops at once are too much memory.
        remaining = window.recorded.slices
        remaining.reverse()
        while remaining:
            item = remaining.pop()
            if item.thread_id == recorded.own_thread_id:
                continue
            if item.category == "python_function" and _OWN_CALL.search(item.name):
                continue
            track = tracks.thread(item.thread_id)
            start_ns = item.start_ns - shift
            slices.append(
                Slice(track, item.category, item.name, start_ns, item.duration_ns, item.args)
            )
        flows += [
            Flow(
                "fwdbwd",
                "forward to backward",
                FlowEnd(tracks.thread(flow.source_thread_id), flow.source_ns - shift),
                FlowEnd(tracks.thread(flow.target_thread_id), flow.target_ns - shift),
            )
            for flow in window.recorded.flows
        ]
    return slices, flows


def _call(span: "Event", tracks: Tracks) -> Slice:
    return Slice(
        tracks.thread(span.thread_id),
        span.category,
        f"{_CALLS[span.category]} {span.name}",
        span.start_ns,
        max(span.duration_ns, 0),
        span.args,
    )


def _launched(program: Slice, span: "Event") -> Launched:
    """Who asked for a program: whoever enqueued it, or else the thread that ran it."""
    thread_id, time_ns = span.args.get("enqueue_thread_id"), span.args.get("enqueue_ns")
    if not isinstance(thread_id, int) or not isinstance(time_ns, int):
        return Launched(program, span.thread_id, span.start_ns)
    return Launched(program, thread_id, time_ns)


def _gaps(recorded: Recorded, tracks: Tracks) -> list[Slice]:
    """Marks where ops are missing, with the reason."""
    starts = [window.start_ns for window in recorded.windows] + [recorded.end_ns]
    return [
        Slice(
            tracks.host("recording"),
            "recording",
            f"ops not recorded: {window.end_reason}",
            window.end_ns,
            max(resumed_ns - window.end_ns, 0),
        )
        for window, resumed_ns in zip(recorded.windows, starts[1:], strict=True)
        if window.end_reason
    ]


def _instants(events: Iterable["Event"], tracks: Tracks) -> list[Instant]:
    marks = []
    for event in events:
        if event.kind == "instant" or (event.kind == "span" and event.category == "fallback"):
            args = dict(event.args)
            if event.duration_ns:
                args["duration_us"] = event.duration_ns / 1000
            track = tracks.thread(event.thread_id)
            marks.append(Instant(track, event.category, event.name, event.start_ns, args))
    return sorted(marks, key=lambda mark: mark.time_ns)


def _samples(events: Iterable["Event"], tracks: Tracks) -> list[Sample]:
    by_counter: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for event in events:
        # JSON has no infinity and no NaN, and a picture of one would say nothing.
        if event.kind != "counter" or not math.isfinite(event.value):
            continue
        track = tracks.device(event.args)
        sample = Sample(track, event.category, event.name, event.start_ns, event.value)
        by_counter[event.category, event.name].append(sample)
    samples = [sample for group in by_counter.values() for sample in group]
    return sorted(samples, key=lambda sample: sample.time_ns)
