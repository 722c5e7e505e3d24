"""A vendor compiler's report on one model: its verdict, blob, estimate and schedule."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = [
    "ESTIMATE_NOTE",
    "UNEXPLAINED",
    "Estimate",
    "Layer",
    "Schedule",
    "TargetReport",
    "Task",
    "read_estimate",
    "read_reason",
    "read_schedule",
]

UNEXPLAINED = "refused without a message"
ESTIMATE_NOTE = "the compiler's estimate, not a measurement"

_LATENCY = re.compile(r"Estimated inference latency: ([0-9.eE+-]+) us")
_SHARE = re.compile(r"- (DMA|DPU|SW) duration \[ns\]: \d+ \(([0-9.]+) %\)")
_ACTIVITY = re.compile(r"Activity Factor - ([0-9.]+)")
_PEAK = re.compile(r"Compilation memory usage: Peak (\d+) KB")
_UNMODELED = re.compile(r"unsupported by VPUNN[^\[\n]*\[([^\]\n]*)\]")
_ENGINES = {"DMA": "DMA", "DPU": "DPU", "SW": "SHAVE"}
_ERROR_LINE = re.compile(r"^\[ERROR\]\s+\S+\s+(.*)$", re.MULTILINE)
_UNHANDLED = re.compile(r"^(Unhandled exception: .*?)(?: \(0x\w+\))?\.?$", re.MULTILINE)  # Wine's
_MOST_REASON = 600


@dataclass(frozen=True)
class Estimate:
    """The compiler's estimate of one run; never a measurement.

    Attributes:
        latency_ms: latency of the whole program.
        shares: share of the latency in which each engine (DMA, DPU, SHAVE) is busy, in percent.
        activity_factor: 0 to 1, the compiler's scale of its energy estimate; or None.
        compile_memory_bytes: peak memory of the compiler, or None.
        unmodeled: SHAVE operations missing in the cost model, which the latency omits.
        note: a remark that the figures are estimates.
    """

    latency_ms: float
    shares: dict[str, float]
    activity_factor: float | None
    compile_memory_bytes: int | None
    unmodeled: tuple[str, ...]
    note: str = ESTIMATE_NOTE

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Estimate:
        """Reads an estimate of `dataclasses.asdict`, also after JSON."""
        return cls(**{**fields, "unmodeled": tuple(fields["unmodeled"])})

    def __str__(self) -> str:
        parts = [f"{self.latency_ms:.3g} ms"]
        parts += [f"{name} {share:.0f} %" for name, share in self.shares.items()]
        if self.unmodeled:
            parts.append(f"without {', '.join(self.unmodeled)}, which its cost model lacks")
        return f"{', '.join(parts)} ({self.note})"


@dataclass(frozen=True)
class TargetReport:
    """The compiler's result for one model and one target.

    Attributes:
        target: platform number, such as "4000".
        compiler: version of the compiler.
        is_accepted: whether it produced a blob.
        reason: the compiler's message of refusal, or the end of its process; "" if accepted.
        operation: friendly name of the operation in the reason, or of the first refused one; "" if
            unknown.
        blob: file of the compiled program; None if refused.
        blob_bytes: size of that file.
        duration_s: compile time in seconds.
        estimate: time estimate; None if refused, or if the compiler has none.
        schedule: JSON file of a Schedule; None if refused, or if the compiler has none.
    """

    target: str
    compiler: str
    is_accepted: bool
    reason: str
    operation: str
    blob: Path | None
    blob_bytes: int
    duration_s: float
    estimate: Estimate | None
    schedule: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields as JSON values."""
        fields = dataclasses.asdict(self)
        return fields | {
            "blob": None if self.blob is None else str(self.blob),
            "schedule": None if self.schedule is None else str(self.schedule),
        }


def read_estimate(log: str) -> Estimate | None:
    """Parses the estimate in the compiler's log; returns None if it has none."""
    latency = _last(_LATENCY, log)
    if latency is None:
        return None
    activity, peak, unmodeled = (_last(each, log) for each in (_ACTIVITY, _PEAK, _UNMODELED))
    return Estimate(
        latency_ms=float(latency) / 1e3,
        shares={_ENGINES[name]: float(share) for name, share in _SHARE.findall(log)},
        activity_factor=None if activity is None else float(activity),
        compile_memory_bytes=None if peak is None else int(peak) * 1024,
        unmodeled=tuple(
            name.strip().removeprefix("builtin_") for name in (unmodeled or "").split(",") if name
        ),
    )


def read_reason(log: str) -> str:
    """Returns the compiler's message of refusal, on one line."""
    said = log.rpartition("Compiler returned msg:")[2].strip() if "returned msg:" in log else ""
    lines = dict.fromkeys(
        [*said.splitlines()[:3], *_ERROR_LINE.findall(log)[:2], *_UNHANDLED.findall(log)[:1]]
    )
    words = " ".join(lines).replace("\0", " ").split()
    return " ".join(words)[:_MOST_REASON] or UNEXPLAINED


def _last(pattern: re.Pattern[str], log: str) -> str | None:
    found = pattern.findall(log)
    return found[-1] if found else None


# "linear_5/aten.linear.default/MatMul?t_MatMul/as_convolution/tile_1/cluster_0"
_TASK = re.compile(r"(?P<layer>.+?)\?t_(?P<type>\w+)")
_PART = re.compile(r"/(?:tile|cluster)_\d+(?=/|$)")
_ROWS = {"DPU": "DPU", "Shave": "SHAVE"}
# Layers repeat their tasks; variants are parts of a cluster's task.
_REPEATED = ("Layers", "DPU Variants")
_SHAPE = re.compile(r"\[([\dx]+)xui8\]")


@dataclass(frozen=True)
class Layer:
    """An operation of the model."""

    name: str  # friendly name of the operation
    type: str  # OpenVINO's type, such as "MatMul"
    module: str  # path of its torch module; "" if unknown
    line: str  # "file.py:123", its Python line; "" if unknown


@dataclass(frozen=True)
class Task:
    """Work of one engine for one layer.

    A task that runs on several clusters at once, or on several SHAVEs of them, is one task from
    the first start to the last end.
    """

    row: str  # "DPU", "SHAVE", or a channel of the DMA engine, such as "DMA 0 DDR"
    name: str  # the compiler's name, without the numbers of clusters and SHAVEs
    layer: int | None  # index of the layer; None for work of the program as a whole
    start_ns: int  # from the start of the run
    duration_ns: int  # estimated by the compiler
    parts: int = 1  # number of clusters or SHAVEs that share it
    moved_bytes: int | None = None  # bytes that a DMA task reads; None for other engines

    @property
    def end_ns(self) -> int:
        """The first nanosecond after the task."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True)
class Schedule:
    """The compiler's estimate of a run: layers by their first task, tasks by their start."""

    layers: tuple[Layer, ...]
    tasks: tuple[Task, ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields as JSON values."""
        return {"layers": [*map(vars, self.layers)], "tasks": [*map(vars, self.tasks)]}


def read_schedule(path: Path, origins: Mapping[str, tuple[str, str]]) -> Schedule | None:
    """Reads the compiler's trace; returns None if it is not as expected."""
    try:
        tasks = _read_tasks(path)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    numbers: dict[str, int] = {}
    layers: list[Layer] = []
    for at, task in enumerate(tasks):
        named = _TASK.match(task.name)
        if named is None:
            continue
        name = named["layer"]
        if name not in numbers:
            numbers[name] = len(layers)
            module, line = origins.get(name.partition("/")[0], ("", ""))
            layers.append(Layer(name, named["type"], module, line))
        tasks[at] = replace(task, layer=numbers[name])
    return Schedule(tuple(layers), tuple(tasks))


def _read_tasks(path: Path) -> list[Task]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    rows = {
        (event["pid"], event["tid"]): str(event["args"]["name"])
        for event in events
        if event["name"] == "thread_name"
    }
    parts: dict[tuple[str, str], list[Task]] = defaultdict(list)
    for event in events:
        row = rows.get((event["pid"], event.get("tid")), "")
        if event["ph"] == "X" and row not in _REPEATED:
            task = _task(event, row)
            parts[task.row, task.name].append(task)
    tasks = [task for same in parts.values() for task in _merged(same)]
    return sorted(tasks, key=lambda task: (task.start_ns, task.row, task.name))


def _task(event: Mapping[str, Any], row: str) -> Task:
    name, moved_bytes = str(event["name"]), None
    engine = _ROWS.get(row.rstrip("0123456789"))
    if engine is not None:
        name = _PART.sub("", name)
    else:
        shape = _SHAPE.fullmatch(event["args"].get("Input tensor shape", ""))
        moved_bytes = math.prod(map(int, shape[1].split("x"))) if shape else None
    start_ns, duration_ns = round(event["ts"] * 1000), round(event["dur"] * 1000)
    return Task(engine or row, name, None, start_ns, duration_ns, 1, moved_bytes)


def _merged(tasks: list[Task]) -> list[Task]:
    """Merges overlapping tasks of one row and name; a DMA channel has none."""
    merged: list[Task] = []
    for task in sorted(tasks, key=lambda one: one.start_ns):
        last = merged[-1] if merged else None
        if last is not None and (task.start_ns < last.end_ns or task.start_ns == last.start_ns):
            end_ns = max(last.end_ns, task.end_ns)
            parts = last.parts + task.parts
            merged[-1] = replace(last, duration_ns=end_ns - last.start_ns, parts=parts)
        else:
            merged.append(task)
    return merged
