"""The CSV tables of `npu-profiler stats`: calls of ops, kernels, memory samples, steps."""

import csv
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npu_profiler.output_file import unwritable
from npu_profiler.queries.memory import Whereabouts, memory_curves
from npu_profiler.queries.ops import is_op_number
from npu_profiler.queries.programs import layer_ns
from npu_profiler.queries.spans import (
    Interval,
    Launch,
    Step,
    busy_intervals,
    find_steps,
    merge,
    total_ns,
)
from npu_profiler.reading import SliceRef, Trace
from npu_profiler.roofline.layer_cost import costs_of_layers

__all__ = ["RECORDS", "Records", "make_directory", "write_csv"]

Rows = Iterator[Sequence[Any]]


class Records(NamedTuple):
    """A CSV table: the kind of rows, columns with units, and a function that returns the rows."""

    meaning: str
    header: str
    rows: Callable[[Trace, list[Launch]], Rows]


def _operators(trace: Trace, launched: list[Launch]) -> Rows:
    device: Counter[SliceRef] = Counter()
    for launch in launched:
        for around in launch.causes():
            device[around] += launch.program.duration_ns
    fallbacks = Counter(
        mark.track.at(mark.time_ns) for mark in trace.instants if mark.category == "fallback"
    )
    steps = _StepNumbers(trace)
    for track in trace.host_tracks:
        category, is_op_name = track.names.find("cpu_op"), is_op_number(track)
        for item in track:
            index = item.index
            if track.category_numbers[index] != category:
                continue
            if not is_op_name[track.name_numbers[index]]:
                continue
            caller = item.parent
            yield (
                steps.at(item.start_ns),
                item.name,
                track.name,
                "" if caller is None else caller.name,
                _us(item.start_ns),
                _us(item.self_ns),
                _us(item.duration_ns),
                _us(device.get(item, 0)),
                fallbacks.get(item, 0),
            )


def _kernels(trace: Trace, launched: list[Launch]) -> Rows:
    causes = {launch.program: launch.cause for launch in launched}
    costs = {layer: cost for layer, _, cost in costs_of_layers(trace)}
    steps = _StepNumbers(trace)
    for track in trace.device_tracks:
        for item in track:
            if item.category == "layer continued":  # counted with its first part
                continue
            around, args = item.parent, item.args
            cause, cost = causes.get(item), costs.get(item)
            is_layer = item.category == "layer"
            yield (
                steps.at(item.start_ns),
                f"npu:{track.device}",
                item.category,
                item.name,
                around.name if is_layer and around is not None else "",
                args.get("type", ""),
                args.get("precision", ""),
                args.get("implementation", ""),
                _us(item.start_ns),
                _us(layer_ns(item) if is_layer else item.duration_ns),
                "" if cause is None else _us(max(item.start_ns - cause.start_ns, 0)),
                args.get("bytes", "") if cost is None else cost.size_bytes,
                None if cost is None else cost.flops,
                args.get("module", ""),
                args.get("line", ""),
            )


def _memory(trace: Trace, _: list[Launch]) -> Rows:
    whereabouts = Whereabouts(trace)
    for counter in memory_curves(trace):
        before = 0.0
        for time_ns, value in zip(counter.times, counter.values, strict=True):
            place = whereabouts.at(time_ns)
            yield (
                counter.process,
                counter.series,
                _us(time_ns),
                int(value),
                int(value - before),
                place.op,
                place.within,
            )
            before = value


def _steps(trace: Trace, _: list[Launch]) -> Rows:
    busy = merge(span for device in busy_intervals(trace).values() for span in device)
    copies = merge((item.start_ns, item.end_ns) for item in trace.slices("copy"))
    compiling = merge((item.start_ns, item.end_ns) for item in trace.slices("compile"))
    for step in find_steps(trace):
        computing = _within(busy, step)
        copying = total_ns(merge([*computing, *_within(copies, step)])) - total_ns(computing)
        yield (
            step.kind,
            step.number,
            _us(step.start_ns),
            _us(step.duration_ns),
            _us(total_ns(computing)),
            _us(copying),
            _us(step.duration_ns - total_ns(computing) - copying),
            _us(total_ns(_within(compiling, step))),
        )


def _within(intervals: Sequence[Interval], step: Step) -> list[Interval]:
    """Returns the parts of sorted disjoint intervals that are in a step."""
    first = max(bisect_right(intervals, (step.start_ns, 0)) - 1, 0)
    found = []
    for start, end in intervals[first:]:
        if start >= step.end_ns:
            break
        if end > step.start_ns:
            found.append((max(start, step.start_ns), min(end, step.end_ns)))
    return found


class _StepNumbers:
    """Finds the step of a time; "" if it is outside of steps."""

    def __init__(self, trace: Trace) -> None:
        self._steps = find_steps(trace)
        self._starts = [step.start_ns for step in self._steps]

    def at(self, time_ns: int) -> str:
        at = bisect_right(self._starts, time_ns) - 1
        if at < 0 or time_ns >= self._steps[at].end_ns:
            return ""
        return f"{self._steps[at].kind} {self._steps[at].number}"


def _us(ns: int) -> str:
    return f"{ns / 1000:.3f}"


RECORDS = {
    "operator_details": Records(
        "one per call of an op",
        "step,op,thread,called_by,start_us,host_self_us,host_total_us,device_total_us,fallbacks",
        _operators,
    ),
    "kernel_details": Records(
        "one per run of a program, per layer and per copy",
        "step,device,category,name,program,type,precision,implementation,start_us,"
        "duration_us,since_launch_us,bytes,flops,module,line",
        _kernels,
    ),
    "memory_record": Records(
        "one per sample of a curve of memory",
        "process,series,time_us,bytes,change_bytes,op,within",
        _memory,
    ),
    "step_trace_time": Records(
        "one per step",
        "kind,step,start_us,duration_us,computing_us,copying_not_overlapped_us,free_us,"
        "compiling_us",
        _steps,
    ),
}


def make_directory(path: Path) -> None:
    """Creates a directory if missing; raises [output-unwritable] on failure."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, "output", error) from None


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Writes a header and rows; returns their number. Raises [output-unwritable] on failure."""
    count = 0
    try:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            for row in rows:
                writer.writerow(row)
                count += 1
    except OSError as error:
        raise unwritable(path, "output", error) from None
    return count
