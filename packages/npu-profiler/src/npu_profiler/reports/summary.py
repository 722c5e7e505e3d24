"""Tables and figures of a trace, for `npu-profiler summary` and the HTML page."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import median
from typing import Any

from npu_profiler.queries.ops import op_rows
from npu_profiler.queries.overview import Overview
from npu_profiler.queries.programs import (
    LayerRow,
    OriginRow,
    has_python_calls,
    layer_kinds,
    layer_rows,
    layered_program_ns,
    line_rows,
    module_rows,
    program_rows,
)
from npu_profiler.queries.spans import Gap, Launch, Step
from npu_profiler.reading import Trace
from npu_profiler.recording.schedule import ENGINES
from npu_profiler.recording.summary import usual_lines
from npu_profiler.reports.tables import (
    Column,
    Table,
    format_bytes,
    format_ms,
    format_share,
    own_name,
)

__all__ = ["VIEWS", "View", "figure_lines", "heading_lines", "missing_note"]

View = Callable[[Trace, list[Launch]], Table]

_NAME = attrgetter("name")

# Time of a program outside its layers: its start, binding of inputs, first-run work, and layers
# below a microsecond.
_OUTSIDE = "(outside of layers)"
_NOTES = {
    "op": "no ops in this trace: the program ran none while it was recorded",
    "program": "no device programs in this trace: nothing that was compiled for a device ran",
    "layer": "no layers in this trace: `npu-profiler trace --layers` records them",
    "type": "no layers in this trace: `npu-profiler trace --layers` records them",
    "module": "no modules in this trace: `npu-profiler trace --modules` records calls of modules, "
    "`--layers` the layers of compiled ones",
    "line": "no Python lines in this trace: `npu-profiler trace --stacks` records Python calls, "
    "`--layers` the lines that layers come from",
}


def missing_note(view: str, trace: Trace) -> str:
    """Returns why a table is empty, and the option of `trace` that fills it."""
    if view in ("module", "line") and any(True for _ in trace.slices("layer")):
        call, option = ("a module", "--modules") if view == "module" else ("Python", "--stacks")
        return (
            f"no {view}s in this trace: its layers have no recorded origin (those of a "
            f"program from a cache cannot), and no calls of {call} were recorded (`npu-profiler "
            f"trace {option}` does that)"
        )
    return _NOTES[view]


def _ops(trace: Trace, launched: list[Launch]) -> Table:
    rows = op_rows(trace, launched)
    whole = sum(row.self_ns for row in rows)
    columns = [
        Column("op", "op"),
        Column("calls", "calls", "count"),
        Column("self_ns", "self ms", "ns"),
        Column("self_share", "share", "share"),
        Column("total_ns", "total ms", "ns"),
        Column("device_ns", "device ms", "ns"),
        Column("fallbacks", "fallbacks", "count"),
    ]
    title = "ops by own host time (device: programs launched within)"
    return Table.of(
        title, columns, rows, op=_NAME, self_share=lambda row: _part(row.self_ns, whole)
    )


def _programs(trace: Trace, _: list[Launch]) -> Table:
    rows = program_rows(trace)
    whole = sum(row.total_ns for row in rows)
    title = "programs by time (explained: their layers' part of the runs with layers)"
    columns = [
        Column("program", "program"),
        Column("device", "device"),
        Column("runs", "runs", "count"),
        Column("total_ns", "total ms", "ns"),
        Column("share", "share", "share"),
        Column("mean_ns", "mean ms", "ns"),
        Column("least_ns", "least ms", "ns"),
        Column("most_ns", "most ms", "ns"),
        Column("layered_runs", "runs with layers", "count"),
        Column("layered_share", "explained", "share"),
    ]
    if trace.estimate:  # each runs once
        title = "programs by time"
        columns = [column for column in columns if column.key in ("program", "total_ns", "share")]
    return Table.of(
        title,
        columns,
        rows,
        program=_NAME,
        device=lambda row: f"npu:{row.device}",
        share=lambda row: _part(row.total_ns, whole),
        layered_runs=lambda row: row.layered,
        layered_share=lambda row: _part(row.layer_ns, row.layered_ns),
    )


def _layers(trace: Trace, _: list[Launch]) -> Table:
    rows = layer_rows(trace)
    if trace.estimate:
        return _estimated_layers(trace, rows)
    columns = [Column("layer", "layer"), Column("program", "program")]
    cells: list[Sequence[str]] = [(row.name, row.program) for row in rows]
    if any(row.module for row in rows):  # the model's names before the compiler's
        columns.insert(0, Column("module", "module"))
        cells = [(row.module, own_name(row.name, row.module), row.program) for row in rows]
    outside = [_OUTSIDE if column.key == "layer" else "" for column in columns]
    return _layer_table(trace, "layers by time", columns, rows, cells, outside)


def _layer_kinds(trace: Trace, _: list[Launch]) -> Table:
    columns = [Column("layers", "layers", "count")]
    rows = layer_kinds(trace)
    if trace.estimate:
        kinds = [(row.layers, row.kind) for row in rows]
        columns.append(Column("type", "type"))
        return _estimated(trace, "kinds of layers", columns, rows, kinds)
    cells = [(row.layers,) for row in rows]
    return _layer_table(trace, "kinds of layers by time", columns, rows, cells, [None, _OUTSIDE])


def _layer_table(
    trace: Trace,
    title: str,
    first: Sequence[Column],
    rows: Sequence[LayerRow],
    first_cells: Sequence[Sequence[object]],
    outside: Sequence[object],
) -> Table:
    """Returns the table of layers; `outside` names the row of the time outside of layers."""
    whole = layered_program_ns(trace)
    runs = len({layer.parent for layer in trace.slices("layer")} - {None})
    columns = [
        *first,
        Column("type", "type"),
        Column("precision", "precision"),
        Column("implementation", "implementation"),
        Column("calls", "calls", "count"),
        Column("total_ns", "total ms", "ns"),
        Column("mean_ns", "mean ms", "ns"),
        Column("share", "share", "share"),
    ]
    cells: list[list[object]] = [
        [
            *head,
            row.kind,
            row.precision,
            row.implementation,
            row.calls,
            row.total_ns,
            row.total_ns / row.calls,
            _part(row.total_ns, whole),
        ]
        for row, head in zip(rows, first_cells, strict=True)
    ]
    if any(row.flops is not None for row in rows):
        columns.append(Column("flops", "GFLOP", "number"))
        for row, line in zip(rows, cells, strict=True):
            line.append(None if row.flops is None else row.flops / 1e9)
    if any(row.moved_bytes is not None for row in rows):
        columns.append(Column("bytes", "bytes", "bytes"))
        for row, line in zip(rows, cells, strict=True):
            line.append(row.moved_bytes)
    rest_ns = whole - sum(row.total_ns for row in rows)
    if rest_ns > 0:
        line = [*outside, *[""] * (len(first) + 3 - len(outside))]
        line += [runs, rest_ns, rest_ns / runs, _part(rest_ns, whole)]
        line += [None] * (len(columns) - len(line))
        at = sum(row.total_ns >= rest_ns for row in rows)
        cells.insert(at, line)
    return Table(f"{title}, in the {runs:,} runs of programs with layers", columns, cells)


def _estimated_layers(trace: Trace, rows: Sequence[LayerRow]) -> Table:
    columns = [Column(key, key) for key in ("module", "layer", "type", "line")]
    cells: list[Sequence[str]] = [
        (row.module, own_name(row.name, row.module), row.kind, row.line) for row in rows
    ]
    if len({row.program for row in rows}) > 1:
        columns.insert(0, Column("program", "program"))
        cells = [(row.program, *line) for row, line in zip(rows, cells, strict=True)]
    return _estimated(trace, "layers", columns, rows, cells)


def _estimated(
    trace: Trace,
    title: str,
    first: Sequence[Column],
    rows: Sequence[LayerRow],
    first_cells: Sequence[Sequence[object]],
) -> Table:
    """Returns the table of a compiler's schedule, with the time of each engine per layer."""
    whole = layered_program_ns(trace)
    columns = [*first, Column("total_ns", "total ms", "ns"), Column("share", "share", "share")]
    columns += [Column(f"{name.lower()}_ns", f"{name} ms", "ns") for name in ENGINES]
    cells = [
        (
            *head,
            row.total_ns,
            _part(row.total_ns, whole),
            *(row.engine_ns.get(name) for name in ENGINES),
        )
        for row, head in zip(rows, first_cells, strict=True)
    ]
    return Table(f"{title} by time", columns, cells)


def _modules(trace: Trace, launched: list[Launch]) -> Table:
    return _origins(trace, "modules", "module", module_rows(trace, launched))


def _lines(trace: Trace, launched: list[Launch]) -> Table:
    title = "lines of layers, and Python calls" if has_python_calls(trace) else "lines of layers"
    return _origins(trace, title, "line", line_rows(trace, launched))


def _origins(trace: Trace, title: str, key: str, rows: Sequence[OriginRow]) -> Table:
    columns = [
        Column(key, key),
        Column("class", "class"),
        Column("calls", "calls", "count"),
        Column("self_ns", "host self ms", "ns"),
        Column("total_ns", "host total ms", "ns"),
        Column("device_ns", "device ms", "ns"),
        Column("layers", "layer runs", "count"),
        Column("layer_ns", "layer ms", "ns"),
    ]
    if trace.estimate:  # an estimate has no host
        columns = [Column(key, key), Column("layers", "layers", "count"), columns[-1]]
    else:
        title = f"{title} by device and host time"
        if not any(row.kind for row in rows):
            columns.pop(1)
    return Table.of(title, columns, rows, **{key: _NAME, "class": attrgetter("kind")})


def _part(value: float, whole: float) -> float | None:
    return value / whole if whole else None


def _labelled(view: View) -> View:
    """Returns the view with titles that mark an estimate."""

    def labelled(trace: Trace, launched: list[Launch]) -> Table:
        table = view(trace, launched)
        note = trace.estimate.get("note")
        return replace(table, title=f"{table.title}: {note}") if note else table

    return labelled


VIEWS: dict[str, View] = {
    "op": _labelled(_ops),
    "program": _labelled(_programs),
    "type": _labelled(_layer_kinds),
    "layer": _labelled(_layers),
    "module": _labelled(_modules),
    "line": _labelled(_lines),
}


_MANY = 5


def heading_lines(trace: Trace) -> list[str]:
    """Returns lines about the trace, and about missing parts."""
    made_with = ", ".join(
        f"{name} {trace.facts[name]}" for name in ("npu-profiler", "torch") if name in trace.facts
    )
    lines = [
        f"{trace.path}: {trace.event_count:,} events" + (f" ({made_with})" if made_with else "")
    ]
    if not trace.is_complete:
        lines.append(
            "the file has no end: its program was killed, or still runs; the following covers the "
            "written part"
        )
    problems = trace.facts.get("problems")
    if isinstance(problems, list):
        lines += [f"missing: {problem}" for problem in problems]
    return lines


def figure_lines(trace: Trace, found: Overview) -> list[str]:
    """Returns the figures of a recording or an estimate."""
    return _estimate_lines(trace.estimate) if trace.estimate else _overview_lines(found)


def _estimate_lines(estimate: Mapping[str, Any]) -> list[str]:
    lines = [
        _line("estimate", f"NPU {estimate['target']}: {estimate['note']}"),
        _line("compiler", estimate["compiler"]),
    ]
    for program in estimate["programs"]:
        busy = ", ".join(f"{name} {share:.0f} %" for name, share in program["shares"].items())
        lines.append(_line(program["name"], f"{program['latency_ms']:,.3f} ms; busy: {busy}"))
        if program["unmodeled"]:
            left_out = ", ".join(program["unmodeled"])
            lines.append(f"  without {left_out}, which the compiler's cost model lacks")
    return lines


def _overview_lines(found: Overview) -> list[str]:
    lines = [_line("wall time", format_ms(found.wall_ns))]
    lines += _device_lines(found)
    lines += _thread_lines(found)
    if found.compile_ns:
        lines.append(_line("compiling", format_ms(found.compile_ns)))
    lines += _step_lines(found.steps)
    lines.append(_line("fallbacks", _fallback_text(found)))
    fallbacks = sum(number for number, _ in found.fallbacks.values())
    lines += usual_lines(sum(one.runs for one in found.devices), fallbacks)
    for copy in found.copies:
        speed = f", {copy.size_bytes / copy.total_ns:.2f} GB/s" if copy.total_ns else ""
        lines.append(
            _line(
                f"copied {copy.direction}",
                f"{format_bytes(copy.size_bytes)} in {copy.count:,} copies, "
                f"{format_ms(copy.total_ns)}{speed}",
            )
        )
    if found.flops is not None:
        lines.append(_line("recorded layers", f"{found.flops / 1e9:,.4g} GFLOP computed"))
    if found.moved_bytes is not None:
        lines.append(
            _line("recorded layers", f"{format_bytes(found.moved_bytes)} read and written")
        )
    return lines


def _device_lines(found: Overview) -> list[str]:
    if not found.devices:
        return [_line("device", "ran no programs")]
    lines = []
    for one in found.devices:
        share = format_share(one.busy_ns / max(found.wall_ns, 1))
        active = format_share(one.busy_ns / max(one.active_ns, 1))
        lines.append(
            _line(
                f"npu:{one.device} busy",
                f"{format_ms(one.busy_ns)} = {share} of the wall time, {active} from its first "
                f"program to its last; {one.runs:,} runs",
            )
        )
        if one.gaps:
            idle = one.active_ns - one.busy_ns
            lines.append(
                _line(f"npu:{one.device} gaps", f"{format_ms(idle)} in {one.gaps:,} gaps; longest:")
            )
            lines += [
                f"  {format_ms(gap.duration_ns):>12} at {format_ms(gap.start_ns)}, before "
                f"{gap.before or 'a program'}: {_gap_text(gap)}"
                for gap in found.gaps
                if gap.device == one.device
            ]
    return lines


def _gap_text(gap: Gap) -> str:
    if not gap.host:
        return "who launched it is not known"
    shown = [f"{name} {format_share(ns / gap.duration_ns)}" for name, ns in gap.host[:3]]
    return ", ".join(shown)


def _thread_lines(found: Overview) -> list[str]:
    if not found.threads:
        return [_line("host", "ran no ops")]
    whole = sum(one.op_ns for one in found.threads)
    shown = ", ".join(
        f"{one.name} {format_ms(one.op_ns)} ({format_share(one.op_ns / max(found.wall_ns, 1))})"
        for one in found.threads[:_MANY]
    )
    more = f", {len(found.threads) - _MANY} more" if len(found.threads) > _MANY else ""
    return [_line("host in ops", f"{format_ms(whole)}: {shown}{more}")]


def _step_lines(steps: Sequence[Step]) -> list[str]:
    lines = []
    for kind, count in Counter(step.kind for step in steps).items():
        times = sorted(step.duration_ns for step in steps if step.kind == kind)
        lines.append(
            _line(
                f"{kind}s",
                f"{count:,}, median {format_ms(round(median(times)))}, "
                f"{format_ms(times[0])} to {format_ms(times[-1])}",
            )
        )
    return lines


def _fallback_text(found: Overview) -> str:
    count = sum(number for number, _ in found.fallbacks.values())
    if not count:
        return "0"
    spent = sum(ns for _, ns in found.fallbacks.values())
    named = [f"{name} x{number}" for name, (number, _) in found.fallbacks.items()]
    more = f", {len(named) - _MANY} more" if len(named) > _MANY else ""
    return f"{count:,} ops by CPU kernels, {format_ms(spent)} ({', '.join(named[:_MANY])}{more})"


def _line(title: str, text: str) -> str:
    return f"{title + ':':<20} {text}"
