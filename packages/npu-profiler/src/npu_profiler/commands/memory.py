"""`npu-profiler memory`: shows memory over time, its peak, and the ops that hold it."""

import argparse
import dataclasses
from collections import Counter as Tally
from collections.abc import Sequence

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer
from npu_profiler.commands.options import add_file, add_top, check_top
from npu_profiler.errors import TraceError
from npu_profiler.queries.memory import (
    DEVICE_SERIES,
    Peak,
    Rise,
    Whereabouts,
    find_peak,
    memory_curves,
    rises,
)
from npu_profiler.reading import Counter, Trace, load_trace
from npu_profiler.reports.memory import draw_memory
from npu_profiler.reports.pictures import check_target, write_picture
from npu_profiler.reports.summary import heading_lines
from npu_profiler.reports.tables import (
    Column,
    Table,
    bin_highest,
    format_bytes,
    format_ms,
    format_table,
    sparkline,
)

__all__ = ["main"]

_WIDTH = 72
_RISES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class _Curve:
    counter: Counter
    peak: Peak | None
    rises: list[Rise]

    @property
    def title(self) -> str:
        return f"{self.counter.process} {self.counter.series}"


def main(words: Sequence[str]) -> int:
    """Runs the command; returns 0."""
    arguments = _parser().parse_args(words)
    check_top(arguments.top)
    picture = check_target(arguments.output) if arguments.output else None
    trace = load_trace(arguments.file)
    curves = _curves(trace)
    if not curves:
        raise TraceError(
            f"`{trace.path}` must have curves of memory, got none, since no tensor was "
            f"allocated on a device. Record the process's memory with npu-profiler trace "
            "--memory.",
            code="trace-no-memory",
        )
    lines = heading_lines(trace)
    for curve in curves:
        lines += ["", *_lines(trace, curve, arguments.top)]
    if picture is not None:
        drawn = draw_memory([(curve.counter, curve.peak) for curve in curves])
        write_picture(picture, drawn)
        lines += ["", f"wrote {picture}"]
    records = [_record(curve) for curve in curves]
    give_answer(arguments.json, records, lambda: print("\n".join(lines)))
    return 0


def _curves(trace: Trace) -> list[_Curve]:
    whereabouts = Whereabouts(trace)
    found = []
    for counter in memory_curves(trace):
        if counter.series == DEVICE_SERIES:
            found.append(_Curve(counter, find_peak(counter, whereabouts), []))
        else:
            found.append(_Curve(counter, None, rises(trace, counter, count=_RISES)))
    return found


def _lines(trace: Trace, curve: _Curve, top: int) -> list[str]:
    counter = curve.counter
    start_ns, end_ns = counter.times[0], counter.times[-1]
    heights = bin_highest(
        counter.times, counter.values, start_ns=start_ns, end_ns=end_ns, bins=_WIDTH
    )
    lines = [
        (
            f"{curve.title}: first {format_bytes(counter.values[0])}, highest "
            f"{format_bytes(max(counter.values))}, last {format_bytes(counter.values[-1])}"
        ),
        f"  {sparkline(heights)}  0 to {format_bytes(max(counter.values))}",
        f"  {format_ms(start_ns)}{format_ms(end_ns):>{_WIDTH - len(format_ms(start_ns))}}",
    ]
    if curve.peak is not None:
        lines += _peak_lines(curve.peak, top)
    if curve.rises:
        lines.append("  largest rises, and the activity of the busiest thread:")
        lines += [_rise_line(rise) for rise in curve.rises]
    return lines


def _peak_lines(peak: Peak, top: int) -> list[str]:
    within = f" in {peak.place.within}" if peak.place.within else ""
    whole = max(peak.size_bytes, 1)
    columns = [
        Column("op", "op"),
        Column("within", "within"),
        Column("size_bytes", "bytes", "bytes"),
        Column("share", "share", "share"),
        Column("rises", "rises", "count"),
    ]
    table = Table.of(
        f"peak {format_bytes(peak.size_bytes)} at {format_ms(peak.time_ns)}, at "
        f"{peak.place.op}{within}; holders by the place of their allocation:",
        columns,
        peak.holders,
        op=lambda holder: holder.place.op,
        within=lambda holder: holder.place.within,
        share=lambda holder: holder.size_bytes / whole,
    )
    lines = format_table(table, limit=top)
    places: Tally[str] = Tally()
    for holder in peak.holders:
        places[holder.place.within or "(outside of any)"] += holder.size_bytes
    if len(places) > 1:
        by_place = Table(
            "the same by annotation, module or phase:",
            columns[1:4],
            [(name, size, size / whole) for name, size in places.most_common()],
        )
        lines += format_table(by_place, limit=top)
    return lines


def _rise_line(rise: Rise) -> str:
    did = ", ".join(f"{name} {format_ms(ns)}" for name, ns in rise.host[:3])
    return (
        f"    +{format_bytes(rise.size_bytes)} from {format_ms(rise.start_ns)} to "
        f"{format_ms(rise.end_ns)}: {did or 'nothing that was recorded: Python, or loading'}"
    )


def _record(curve: _Curve) -> dict[str, object]:
    counter = curve.counter
    return {
        "process": counter.process,
        "series": counter.series,
        "times_ns": list(counter.times),
        "values": list(counter.values),
        "peak": None if curve.peak is None else dataclasses.asdict(curve.peak),
        "rises": [dataclasses.asdict(rise) for rise in curve.rises],
    }


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-profiler memory",
        description="Shows the memory of devices over time, its peak, and the ops that hold it; "
        "also the memory of the process, if recorded with --memory.",
    )
    add_file(parser)
    parser.add_argument(
        "-o", "--output", metavar="PICTURE", help="draw a chart: .svg, .html or .png"
    )
    add_top(parser)
    add_json(parser)
    return parser
