"""A compiler's schedule as a trace: programs with their layers, and the tasks of each engine.

The times are the compiler's estimate.
"""

import heapq
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from npu_profiler.errors import TraceError
from npu_profiler.trace_format.timeline import Piece, Slice, Track
from npu_profiler.trace_format.trace_file import (
    TraceFile,
    format_piece,
    format_tracks,
    new_flow_ids,
)
from npu_profiler.trace_format.tracks import DEVICE_PID, OWN_TIDS, Lanes

__all__ = ["ENGINES", "layer_parts", "read_schedules", "write_schedule"]

ENGINES = ("DPU", "SHAVE", "DMA")

# The compiler rounds starts and durations to a nanosecond each.
_ROUNDING_NS = 2

_Task = Mapping[str, Any]
_Interval = tuple[int, int]


def read_schedules(checks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Reads the schedules of programs from the JSON of `npu-compiler check --target`.

    Each has `name`, `target`, `compiler`, the estimate's fields, `layers` and `tasks`.
    Raises [estimate-schedule] if one has no schedule.
    """
    programs = []
    for check in checks:
        name, report = check["name"], check["report"] or {}
        try:
            schedule = json.loads(Path(report["schedule"]).read_text("utf-8"))
            fields = {**report["estimate"], **schedule}
        except (KeyError, TypeError, OSError, ValueError) as failure:
            said = [one["detail"] for one in check["findings"] if one["judge"] == "compiler"]
            raise TraceError(
                f"estimate: {name} must have a schedule of an NPU's compiler, got none: "
                f"{' '.join(said)} See `npu-compiler target list`.",
                code="estimate-schedule",
            ) from failure
        compiled = {key: report[key] for key in ("target", "compiler")}
        programs.append({"name": name, **compiled, **fields})
    return programs


def write_schedule(programs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes schedules of read_schedules as a trace file, whole or not at all (OSError).

    Several programs follow each other in time. The file is compressed if its name ends in .gz.
    """
    rows = _Rows(programs[0]["note"])
    slices: list[Slice] = []
    start_ns = 0
    for program in programs:
        slices += _program_slices(program, start_ns, rows)
        start_ns = max(item.end_ns for item in slices)
    told = [
        {key: value for key, value in program.items() if key not in ("layers", "tasks")}
        for program in programs
    ]
    whole = {key: programs[0][key] for key in ("note", "target", "compiler")}
    facts = {"npu-profiler": version("npu-profiler"), "estimate": {**whole, "programs": told}}
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as place:
        draft = Path(place) / path.name
        file = TraceFile(draft, start_ns=0, first=format_tracks(rows.tracks()))
        try:
            file.write(format_piece(Piece(slices), 0, flow_ids=new_flow_ids()))
            file.finish(facts)
        finally:
            file.close()
        draft.replace(path)


def layer_parts(tasks: Sequence[_Task]) -> Iterator[tuple[int, int, int]]:
    """Yields (layer, start_ns, end_ns): the layer that each interval of a run is attributed to.

    An instant is attributed to the running layer that ends first. So the work for later layers,
    such as loading their weights, is free while an earlier layer runs.
    """
    ends: dict[int, int] = {}
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for task in tasks:
        layer, start, duration = task["layer"], task["start_ns"], task["duration_ns"]
        if layer is not None and duration:
            ends[layer] = max(ends.get(layer, 0), start + duration)
            changes[start].append((layer, 1))
            changes[start + duration].append((layer, -1))
    running: dict[int, int] = defaultdict(int)
    first: list[tuple[int, int]] = []
    counted, begin = -1, 0
    for time in sorted(changes):
        for layer, change in changes[time]:
            if change > 0 and not running[layer]:
                heapq.heappush(first, (ends[layer], layer))
            running[layer] += change
        while first and not running[first[0][1]]:
            heapq.heappop(first)
        now = first[0][1] if first else -1
        if now != counted:
            if counted >= 0 and time - begin > _ROUNDING_NS:
                yield counted, begin, time
            counted, begin = now, time


class _Rows:
    """Rows of the trace: programs above, then engines."""

    def __init__(self, note: str) -> None:
        self._process = f"npu:0 ({note})"
        self._tracks: dict[tuple[str, int], Track] = {}
        self._lanes: dict[str, Lanes] = defaultdict(Lanes)
        self._placed = 0

    def track(self, row: str, start_ns: int, end_ns: int) -> Track:
        """Returns the row of a slice, or another row on overlap; slices are sorted by end."""
        self._placed += 1  # as a thread id, so that no slice contains another
        return self.named(row, self._lanes[row].place(start_ns, end_ns, self._placed))

    def named(self, row: str, lane: int = 0) -> Track:
        """Returns a row by its name."""
        title = row if lane == 0 else f"{row} ({lane + 1})"
        order = next((at for at, name in enumerate(ENGINES, 1) if row.startswith(name)), 0)
        number = len(self._tracks)
        new = Track(DEVICE_PID, OWN_TIDS + number, title, self._process, order)
        return self._tracks.setdefault((row, lane), new)

    def tracks(self) -> list[Track]:
        """Returns all rows from top to bottom."""
        return sorted(self._tracks.values(), key=lambda track: (track.order, track.name))


def _program_slices(program: Mapping[str, Any], start_ns: int, rows: _Rows) -> list[Slice]:
    tasks, layers = program["tasks"], program["layers"]
    end_ns = max((task["start_ns"] + task["duration_ns"] for task in tasks), default=0)
    top = rows.named("programs")
    told = {key: program[key] for key in ("shares", "unmodeled")}
    slices = [Slice(top, "program", program["name"], start_ns, end_ns, told)]
    slices += _layer_slices(tasks, layers, top, start_ns)
    for task in sorted(tasks, key=lambda one: one["start_ns"] + one["duration_ns"]):
        if not task["duration_ns"]:
            continue
        begin_ns = start_ns + task["start_ns"]
        track = rows.track(task["row"], begin_ns, begin_ns + task["duration_ns"])
        args = {"parts": task["parts"]} if task["parts"] > 1 else {}
        if task["moved_bytes"] is not None:
            args["bytes"] = task["moved_bytes"]
        if task["layer"] is not None:
            args |= _origin(layers[task["layer"]])
        slices.append(Slice(track, "task", task["name"], begin_ns, task["duration_ns"], args))
    return slices


def _layer_slices(
    tasks: Sequence[_Task], layers: Sequence[Mapping[str, str]], track: Track, start_ns: int
) -> Iterator[Slice]:
    """Yields the intervals of each layer, with the layer's time in total and per engine."""
    parts: dict[int, list[_Interval]] = {number: [] for number in range(len(layers))}
    for number, begin, end in layer_parts(tasks):
        parts[number].append((begin, end))
    busy = _busy_ns(tasks)
    for number, layer in enumerate(layers):
        own = parts[number] or [(0, 0)]  # hidden by other layers
        engines = {f"{engine}_us": busy[number, engine] / 1000 for engine in ENGINES}
        whole_us = sum(end - begin for begin, end in own) / 1000
        told = {"type": layer["type"], "duration_us": whole_us, **engines, **_origin(layer)}
        category = "layer"
        for begin, end in own:
            yield Slice(track, category, layer["name"], start_ns + begin, end - begin, told)
            category = "layer continued"


def _busy_ns(tasks: Sequence[_Task]) -> Mapping[tuple[int, str], int]:
    """Returns the busy time of each engine for each layer, overlapping tasks counted once."""
    busy: dict[tuple[int, str], int] = defaultdict(int)
    ends: dict[tuple[int, str], int] = defaultdict(int)
    for task in sorted(tasks, key=lambda one: one["start_ns"]):
        key = (task["layer"], next(name for name in ENGINES if task["row"].startswith(name)))
        end = task["start_ns"] + task["duration_ns"]
        busy[key] += max(end - max(task["start_ns"], ends[key]), 0)
        ends[key] = max(ends[key], end)
    return busy


def _origin(layer: Mapping[str, str]) -> dict[str, str]:
    return {key: layer[key] for key in ("module", "line") if layer[key]}
