"""Converts the runtime's events into parts of a trace: rows, slices, marks, samples, arrows."""

import dataclasses
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from npu_profiler.listeners.calls import ImportCall, ModuleCall
from npu_profiler.listeners.device_events import LayerOrigins, is_told_of_layers
from npu_profiler.torch_side.kineto_file import ClockAlignment, TorchSlice
from npu_profiler.torch_side.torch_windows import OpWindow
from npu_profiler.trace_format.timeline import Flow, FlowEnd, Instant, Piece, Sample, Slice
from npu_profiler.trace_format.tracks import Queues, Tracks, enqueued_by, queued_us

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["Assembler"]

# Our own Python calls, at the start and end of a recording with stacks.
_OWN_CALL = re.compile(
    r"(^|/)npu_profiler/(\w+/)?\w+\.py\(|^torch/(autograd|profiler)/profiler\.py\("
)

# Our module hooks, among the program's calls: a module begins within a hook.
_OWN_HOOK = re.compile(r"(^|/)npu_profiler/module_calls\.py\(")

# Runtime calls, by verb, which belong on the calling thread's row.
_CALLS = {"launch": "launch", "sync": "synchronize"}
_ON_DEVICE = {"program", "copy"}
# "kernel" is an npu op on the host: torch's record of it is already on the row.
_NOT_DRAWN = {"fallback", "kernel"}

# Suffix of OpenVINO's kernel names: "brgemm_avx512_amx_bf16", "jit_avx512_FP32".
_PRECISION = re.compile(r"_(f32|f16|bf16|i8|u8|i4|u4|i32|i64|fp32|fp16|boolean)$", re.IGNORECASE)


class Assembler:
    """Assigns events, chunk by chunk, to rows."""

    def __init__(self, tracks: Tracks) -> None:
        self._tracks = tracks
        self._programs: dict[int, Slice] = {}  # the latest by reporting thread
        # Inputs and outputs of layers: by reporting thread, and as written by program.
        self._shapes: dict[tuple[int, str], Mapping[str, object]] = {}
        self._told_shapes: dict[tuple[str, str], Mapping[str, object]] = {}
        self._origins = LayerOrigins()
        self._queues = Queues(tracks)

    def place(self, events: Iterable["Event"]) -> Piece:
        """Adds events, in order."""
        events = list(events)
        slices: list[Slice] = []
        instants: list[Instant] = []
        samples: list[Sample] = self._queues.follow(events)
        flows: list[Flow] = []
        for event in events:
            if event.kind == "counter":
                # JSON has no infinity or NaN, and a chart cannot show one.
                if math.isfinite(event.value):
                    samples.append(self._sample(event))
            elif is_told_of_layers(event):
                self._origins.hear(event)
            elif event.kind == "instant" or event.category == "fallback":
                instants.append(self._instant(event))
            elif event.category == "layer_shapes":
                self._shapes[event.thread_id, event.name] = event.args
            elif event.category == "layer":
                slices += self._layer(event)
            elif event.category == "program":
                program = self._program(event)
                slices.append(program)
                flows.append(self._arrow(program, event))
            elif event.category in _ON_DEVICE:
                slices.append(self._tracks.place_on_device(event))
            elif event.category in _CALLS:
                slices.append(self._call(event))
            elif event.category == "worker":  # threads of a kernel program
                track = self._tracks.thread(event.thread_id)
                slices.append(
                    Slice(
                        track, "worker", event.name, event.start_ns, event.duration_ns, event.args
                    )
                )
            elif event.category not in _NOT_DRAWN:
                slices.append(self._tracks.place_on_host(event))
        # Parents before children, also if both begin at the same nanosecond.
        slices.sort(key=lambda item: (item.start_ns, -item.duration_ns))
        return Piece(slices, instants, samples, flows)

    def place_imports(self, calls: Iterable[ImportCall]) -> list[Slice]:
        """Adds imports to the rows of their threads, parents before children."""
        slices = [
            Slice(
                self._tracks.thread(call.thread_id),
                "import",
                f"import {call.name}",
                call.start_ns,
                call.end_ns - call.start_ns,
            )
            for call in calls
        ]
        slices.sort(key=lambda item: (item.start_ns, -item.duration_ns))
        return slices

    def place_modules(self, calls: Iterable[ModuleCall]) -> list[Slice]:
        """Adds module calls to the rows of their threads, parents before children."""
        slices = [
            Slice(
                self._tracks.thread(call.thread_id),
                "module",
                call.path,
                call.start_ns,
                call.end_ns - call.start_ns,
                {"class": call.class_name, "root": call.root_name},
            )
            for call in calls
        ]
        slices.sort(key=lambda item: (item.start_ns, -item.duration_ns))
        return slices

    def place_windows(
        self,
        windows: Sequence[OpWindow],
        alignment: ClockAlignment,
        *,
        own_thread_id: int | None,
        until_ns: int | None = None,
    ) -> Piece:
        """Adds events of torch's profiler up to a time, converted to the system clock.

        Windows are emptied while they are read, because two copies of a million ops need too much
        memory. Our own threads are left out.
        """
        slices = []
        flows = []
        shift = alignment.offset_ns
        for window in windows:
            hooks = _Hooks(window.recorded.slices)
            remaining = window.recorded.slices
            remaining.reverse()
            while remaining:
                item = remaining.pop()
                if item.thread_id == own_thread_id:
                    continue
                if item.category == "python_function" and (
                    _OWN_CALL.search(item.name) or hooks.hold(item)
                ):
                    continue
                start_ns = item.start_ns - shift
                if until_ns is not None and start_ns > until_ns:
                    continue
                track = self._tracks.thread(item.thread_id)
                slices.append(
                    Slice(track, item.category, item.name, start_ns, item.duration_ns, item.args)
                )
            flows += [
                Flow(
                    "fwdbwd",
                    "forward to backward",
                    FlowEnd(self._tracks.thread(flow.source_thread_id), flow.source_ns - shift),
                    FlowEnd(self._tracks.thread(flow.target_thread_id), flow.target_ns - shift),
                )
                for flow in window.recorded.flows
                if until_ns is None or flow.target_ns - shift <= until_ns
            ]
        return Piece(slices=slices, flows=flows)

    def place_gaps(self, windows: Sequence[OpWindow], end_ns: int) -> Piece:
        """Marks gaps between windows, with the reason."""
        starts = [window.start_ns for window in windows] + [end_ns]
        return Piece(
            [
                Slice(
                    self._tracks.host("recording"),
                    "recording",
                    f"ops not recorded: {window.end_reason}",
                    window.end_ns,
                    max(resumed_ns - window.end_ns, 0),
                )
                for window, resumed_ns in zip(windows, starts[1:], strict=True)
                if window.end_reason
            ]
        )

    def _program(self, span: "Event") -> Slice:
        placed = self._tracks.place_on_device(span)
        waited_us = queued_us(span)
        if waited_us is not None:
            args = {**(placed.args or {}), "queued_us": waited_us}
            placed = dataclasses.replace(placed, args=args)
        self._programs[span.thread_id] = placed
        return placed

    def _layer(self, span: "Event") -> list[Slice]:
        """Returns a layer within its program, the previous report of the same thread."""
        program = self._programs.get(span.thread_id)
        if program is None:
            return []
        kernel = str(span.args.get("implementation", ""))
        precision = _PRECISION.search(kernel)
        # A kernel program's layers have start times; others have only durations.
        told_us = span.args.get("told_us")
        times = {"duration_us": told_us, "start": "laid out by execution order"}
        args = {
            "type": span.args.get("type"),
            "precision": precision.group(1).lower() if precision else "",
            "implementation": kernel,
            **(times if told_us is not None else {}),
            **self._new_shapes(program.name, span),
            **({"module": module} if (module := span.args.get("module")) else {}),
            **self._origins.find(program.name, span.name),
        }
        start_ns = min(max(span.start_ns, program.start_ns), program.end_ns)
        end_ns = min(span.start_ns + span.duration_ns, program.end_ns)
        return [Slice(program.track, "layer", span.name, start_ns, end_ns - start_ns, args)]

    def _new_shapes(self, program: str, layer: "Event") -> dict[str, object]:
        """Returns the inputs and outputs of a layer if they differ from those of earlier runs.

        Empty strings mean unknown for this run, but known for an earlier one.
        """
        heard = self._shapes.pop((layer.thread_id, layer.name), {})
        shapes = {key: heard.get(key, "") for key in ("inputs", "outputs")}
        told = self._told_shapes.get((program, layer.name))
        if told == shapes or (told is None and not heard):
            return {}
        self._told_shapes[program, layer.name] = shapes
        return shapes

    def _arrow(self, program: Slice, span: "Event") -> Flow:
        # Viewers find the enclosing slice, because the runtime also makes each run an op of
        # torch's.
        thread_id, time_ns = enqueued_by(span) or (span.thread_id, span.start_ns)
        return Flow(
            "launch",
            "launch",
            FlowEnd(self._tracks.thread(thread_id), time_ns),
            FlowEnd(program.track, program.start_ns),
        )

    def _call(self, span: "Event") -> Slice:
        return Slice(
            self._tracks.thread(span.thread_id),
            span.category,
            f"{_CALLS[span.category]} {span.name}",
            span.start_ns,
            max(span.duration_ns, 0),
            span.args,
        )

    def _instant(self, event: "Event") -> Instant:
        args = dict(event.args)
        if event.duration_ns:
            args["duration_us"] = event.duration_ns / 1000
        track = self._tracks.thread(event.thread_id)
        return Instant(track, event.category, event.name, event.start_ns, args)

    def _sample(self, event: "Event") -> Sample:
        track = self._tracks.device(event.args)
        return Sample(track, event.category, event.name, event.start_ns, event.value)


class _Hooks:
    """Calls of our own hooks among Python calls, by thread."""

    def __init__(self, slices: Iterable[TorchSlice]) -> None:
        self._starts: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[int, list[int]] = defaultdict(list)
        hooks = [item for item in slices if _OWN_HOOK.search(item.name)]
        for item in sorted(hooks, key=lambda hook: hook.start_ns):
            ends = self._ends[item.thread_id]
            if ends and item.start_ns < ends[-1]:
                continue  # functions that a hook calls
            self._starts[item.thread_id].append(item.start_ns)
            ends.append(item.start_ns + item.duration_ns)

    def hold(self, item: TorchSlice) -> bool:
        """Whether a hook made the call."""
        starts = self._starts.get(item.thread_id)
        if starts is None:
            return False
        place = bisect_right(starts, item.start_ns) - 1
        return place >= 0 and item.start_ns < self._ends[item.thread_id][place]
