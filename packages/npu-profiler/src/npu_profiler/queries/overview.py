"""Overall figures of a trace: duration, device and host utilization, and fallbacks."""

from collections import Counter
from dataclasses import dataclass

from npu_profiler.queries.ops import fallback_totals, is_op_number
from npu_profiler.queries.programs import sum_known
from npu_profiler.queries.spans import (
    Gap,
    Interval,
    Step,
    busy_intervals,
    device_gaps,
    find_steps,
    merge,
    total_ns,
)
from npu_profiler.reading import Trace, Track
from npu_profiler.roofline.layer_cost import costs_of_layers

__all__ = ["CopyTotal", "DeviceTime", "Overview", "ThreadTime", "overview"]


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Utilization of a device."""

    device: int
    runs: int  # of programs
    program_ns: int  # time of all runs together; more than `busy_ns` where runs overlap
    busy_ns: int  # time in which at least one program ran
    active_ns: int  # from the begin of its first program to the end of its last
    gaps: int  # number of idle gaps in between


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """Time that a thread spent in ops."""

    name: str
    op_ns: int


@dataclass(frozen=True, slots=True)
class CopyTotal:
    """All copies of one direction: "cpu to npu", for example."""

    direction: str
    count: int
    size_bytes: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class Overview:
    """Overview of a trace."""

    wall_ns: int  # from the begin of its first slice to the end of its last
    devices: tuple[DeviceTime, ...]  # devices that ran programs
    gaps: tuple[Gap, ...]  # the longest of all devices
    threads: tuple[ThreadTime, ...]  # threads that ran ops, the longest first
    compile_ns: int  # time of compile phases, of all threads together, without overlaps on a thread
    fallbacks: dict[str, tuple[int, int]]  # by op: how often, and host time; the longest first
    copies: tuple[CopyTotal, ...]  # by direction
    steps: tuple[Step, ...]
    flops: float | None  # of the recorded runs of layers with known operations; None without
    # Read and written by the recorded runs of layers; None if none is known.
    moved_bytes: float | None


def overview(trace: Trace, *, gap_count: int = 3) -> Overview:
    """Computes the figures, including this many device gaps."""
    busy = busy_intervals(trace)
    threads = [ThreadTime(track.name, op_ns(track)) for track in trace.host_tracks]
    compiling = [
        (item.start_ns, item.end_ns) for item in trace.slices("compile") if item.parent is None
    ]
    costs = [cost for _, _, cost in costs_of_layers(trace)]
    return Overview(
        wall_ns=max(trace.end_ns - trace.start_ns, 0),
        devices=tuple(_device_time(trace, device, busy[device]) for device in busy),
        gaps=tuple(device_gaps(trace, busy, count=gap_count)),
        threads=tuple(
            sorted((one for one in threads if one.op_ns), key=lambda one: (-one.op_ns, one.name))
        ),
        compile_ns=total_ns(merge(compiling)),
        fallbacks=fallback_totals(trace),
        copies=_copies(trace),
        steps=tuple(find_steps(trace)),
        flops=sum_known(cost.flops for cost in costs),
        moved_bytes=sum_known(cost.size_bytes for cost in costs),
    )


def op_ns(track: Track) -> int:
    """Returns a thread's time in ops; nested ops count once."""
    category, is_op_name = track.names.find("cpu_op"), is_op_number(track)
    spent = end = 0
    columns = zip(
        track.starts, track.durations, track.category_numbers, track.name_numbers, strict=True
    )
    for start, duration, kind, name in columns:
        if kind == category and is_op_name[name] and start >= end:
            spent += duration
            end = start + duration
    return spent


def _device_time(trace: Trace, device: int, busy: list[Interval]) -> DeviceTime:
    times = [
        program.duration_ns
        for program in trace.slices("program")
        if (program.track.device or 0) == device
    ]
    return DeviceTime(
        device, len(times), sum(times), total_ns(busy), busy[-1][1] - busy[0][0], len(busy) - 1
    )


def _copies(trace: Trace) -> tuple[CopyTotal, ...]:
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for copy in trace.slices("copy"):
        count[copy.name] += 1
        size[copy.name] += int(copy.args.get("bytes", 0))
        spent[copy.name] += copy.duration_ns
    return tuple(
        CopyTotal(name, count[name], size[name], spent[name])
        for name in sorted(count, key=lambda name: (-size[name], name))
    )
