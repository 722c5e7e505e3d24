"""A sweep as a table, as JSON and as a picture."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from npu_command.charts import Chart, Panel, draw_bars
from npu_profiler.reports.tables.model import Column, Table
from npu_profiler.roofline.peaks import ABOVE_PEAK, Peaks
from npu_profiler.sweeps.measuring import Measurement

__all__ = ["PRECISIONS", "draw", "notes", "records", "to_table"]

# The probes' names of torch's dtypes.
PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def to_table(measured: Sequence[Measurement], peaks: Peaks | None, *, title: str) -> Table:
    """One row for each measurement, in their order."""
    columns = [
        Column("size", "size"),
        Column("dtype", "dtype"),
        Column("mode", "mode"),
        Column("time_ns", "ms", "ns"),
        Column("gflops_per_s", "GFLOP/s", "number"),
        Column("gbytes_per_s", "GB/s", "number"),
        Column("runs", "runs", "count"),
    ]
    rows = [
        [
            one.size,
            one.dtype,
            one.mode,
            one.time_ns,
            _billions(one.flops_per_s),
            _billions(one.bytes_per_s),
            one.runs,
        ]
        for one in measured
    ]
    if peaks is not None:
        columns[-1:-1] = [Column("peak_share", "of peak", "roof"), Column("bound", "bound by")]
        for row, one in zip(rows, measured, strict=True):
            row[-1:-1] = list(_roof(one, peaks))
    return Table(title, columns, rows)


def notes(measured: Sequence[Measurement], peaks: Peaks | None) -> list[str]:
    """Lines below the table: why some did not run, and how to read more than the peak."""
    lines = [
        f"{one.size} {one.dtype} {one.mode} did not run: {one.problem}"
        for one in measured
        if one.problem
    ]
    if peaks is not None and any((_roof(one, peaks)[0] or 0) > 1 for one in measured):
        lines.append(ABOVE_PEAK)
    return lines


def records(measured: Sequence[Measurement], peaks: Peaks | None) -> list[dict[str, Any]]:
    """The measurements for programs; times in nanoseconds, rates per second."""
    found = []
    for one in measured:
        share, bound = _roof(one, peaks) if peaks is not None else (None, None)
        found.append(
            {
                **dataclasses.asdict(one),
                "flops_per_s": one.flops_per_s,
                "bytes_per_s": one.bytes_per_s,
                "peak_share": share,
                "bound": bound,
            }
        )
    return found


def draw(measured: Sequence[Measurement], *, title: str) -> Chart:
    """Bars of GFLOP/s: a panel for each size, a bar for each dtype and mode."""
    panels = []
    for size in dict.fromkeys(one.size for one in measured):
        groups: dict[str, dict[str, float]] = {}
        for one in measured:
            if one.size == size and one.flops_per_s is not None:
                groups.setdefault(one.dtype, {})[one.mode] = one.flops_per_s / 1e9
        panels.append(Panel(f"{size} (GFLOP/s)", groups))
    return draw_bars(panels, title=title)


def _roof(one: Measurement, peaks: Peaks) -> tuple[float | None, str | None]:
    """What it reaches of the least time that the device could take, and what sets that."""
    peak = peaks.flops_per_s.get(PRECISIONS.get(one.dtype, ""))
    if one.time_ns is None or peak is None:
        return None, None
    compute_s, memory_s = one.flops / peak, one.size_bytes / peaks.bytes_per_s
    bound = "compute" if compute_s > memory_s else "memory"
    return max(compute_s, memory_s) / one.time_ns * 1e9, bound


def _billions(rate: float | None) -> float | None:
    return None if rate is None else rate / 1e9
