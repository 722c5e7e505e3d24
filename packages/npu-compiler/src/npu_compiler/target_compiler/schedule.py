"""A vendor compiler's schedule of one run: the tasks of each engine, by layer, module and line.

The tasks are read from the Chrome trace that Intel's NPU compiler writes
(compileTimeScheduleTrace.json).
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["Layer", "Schedule", "Task", "read_schedule"]

# "linear_5/aten.linear.default/MatMul?t_MatMul/as_convolution/tile_1/cluster_0"
_TASK = re.compile(r"(?P<layer>.+?)\?t_(?P<type>\w+)")
_PART = re.compile(r"/(?:tile|cluster)_\d+(?=/|$)")
_ROWS = {"DPU": "DPU", "Shave": "SHAVE"}
# Layers repeat their tasks; variants are parts of a cluster's task.
_REPEATED = ("Layers", "DPU Variants")
_SHAPE = re.compile(r"\[([\dx]+)xui8\]")


@dataclass(frozen=True)
class Layer:
    """An operation of the model.

    Attributes:
        name: friendly name of the operation.
        type: OpenVINO's type, such as "MatMul".
        module: path of the torch module that it comes from; "" if it is not known.
        line: "file.py:123", its Python line; "" if it is not known.
    """

    name: str
    type: str
    module: str
    line: str


@dataclass(frozen=True)
class Task:
    """Work of one engine for one layer.

    A task that runs on several clusters at once, or on several SHAVEs of them, is one task from
    the first start to the last end.

    Attributes:
        row: "DPU", "SHAVE", or a channel of the DMA engine, such as "DMA 0 DDR".
        name: the compiler's name, without the numbers of clusters and SHAVEs.
        layer: index of the layer; None for work of the program as a whole.
        start_ns: from the start of the run.
        duration_ns: estimated by the compiler.
        parts: number of clusters or SHAVEs that share it.
        moved_bytes: bytes that a DMA task reads; None for other engines.
    """

    row: str
    name: str
    layer: int | None
    start_ns: int
    duration_ns: int
    parts: int = 1
    moved_bytes: int | None = None

    @property
    def end_ns(self) -> int:
        """Returns the first nanosecond after it."""
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
    """Reads the trace that the compiler wrote; returns None if it is not as expected."""
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
    """Merges tasks of one row and name that overlap; a DMA channel has none."""
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
