"""`npu-profiler compare`: finds ops that became slower or faster between traces."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer
from npu_profiler.commands.options import add_top, check_top
from npu_profiler.comparison import (
    Difference,
    Samples,
    are_exact,
    compare_calls,
    compare_steps,
    compare_totals,
    shared_step,
    take_samples,
)
from npu_profiler.errors import TraceError
from npu_profiler.reading import load_trace
from npu_profiler.reports.tables import Column, Table, format_ms, format_table

__all__ = ["main"]

EXIT_SLOWER = 1

_TABLES = {"step": "steps", "program": "programs", "layer": "layers", "op": "ops by own host time"}
# Rows below this share of their table's time do not fail a comparison.
_LEAST_SHARE = 0.01


def main(words: Sequence[str]) -> int:
    """Runs the command; returns 0, or 1 if something became slower by more than `--fail-above`."""
    arguments = _parser().parse_args(words)
    check_top(arguments.top)
    base_files, new_files = _files(arguments)
    notes: list[str] = []
    base = [_read(file, notes) for file in base_files]
    new = [_read(file, notes) for file in new_files]
    step = shared_step([*base, *new])
    tables = {"whole trace": compare_totals(base, new)}
    for name in [arguments.by] if arguments.by else _TABLES:
        is_step = name == "step"
        tables[name] = (
            compare_steps(base, new) if is_step else compare_calls(base, new, name, step=step)
        )
    worse = _failing(tables, arguments.fail_above)
    shown = {name: _changed(name, rows, arguments) for name, rows in tables.items()}
    is_exact = are_exact([*base, *new])
    lines = [
        *notes,
        *_lines(base_files, new_files, step, tables, shown, arguments.top, is_exact=is_exact),
    ]
    if arguments.fail_above is not None:
        lines += ["", *_verdict_lines(worse, arguments.fail_above)]
    document = _document(base_files, new_files, step, tables, worse, notes)
    give_answer(arguments.json, document, lambda: print("\n".join(lines)))
    return EXIT_SLOWER if worse else 0


def _files(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    if len(arguments.files) == 2 and not arguments.base and not arguments.new:
        return [arguments.files[0]], [arguments.files[1]]
    if arguments.base and arguments.new and not arguments.files:
        return arguments.base, arguments.new
    raise TraceError(
        "compare: arguments must be two traces, or --base and --new with traces each, got "
        f"{len(arguments.files)} and {len(arguments.base)} + {len(arguments.new)}. Write compare A "
        "B, or compare --base A1 A2 --new B1 B2.",
        code="compare-files",
    )


def _read(file: str, notes: list[str]) -> Samples:
    """Reads the samples of a trace, and notes its differences; frees it before the next."""
    trace = load_trace(file)
    if not any(map(len, trace.tracks)):
        raise TraceError(
            f"compare: {file} must be a trace with events, got an empty one. Check whether its "
            "program failed.",
            code="trace-empty",
        )
    if not trace.is_complete:
        notes.append(f"{file} has no end: its program was killed, or still runs")
    if trace.estimate:
        notes.append(f"{file}: {trace.estimate['note']}")
    return take_samples(trace)


def _lines(
    base_files: Sequence[str],
    new_files: Sequence[str],
    step: str | None,
    tables: dict[str, list[Difference]],
    shown: dict[str, list[Difference]],
    top: int,
    *,
    is_exact: bool,
) -> list[str]:
    lines = [f"base: {', '.join(base_files)}", f"new:  {', '.join(new_files)}"]
    if step is None:
        lines.append("calls and impact are those of a trace; the traces have no steps in common")
    else:
        lines.append(f"calls and impact are those of a step ({step}), and of calls within steps")
    if is_exact:
        lines.append("noise: none, as all times are estimates")
    elif len(base_files) > 1 or len(new_files) > 1:
        lines.append("noise: 99 % bounds of the difference, from the variation between the traces")
    else:
        within = "steps" if step is not None else "parts of a trace"
        lines += [
            f"noise: 99 % bounds of the difference, from the variation between {within}; two runs",
            "of a program differ more. Several traces show that: --base A1 A2 A3 --new B1 B2 B3",
        ]
    for name, rows in tables.items():
        if rows:
            title = _TABLES.get(name, name)
            lines += ["", *_table_lines(title, name, shown[name], top)]
            lines += _folded(rows, shown[name])
            lines += _counts(rows)
    return lines


def _changed(name: str, rows: list[Difference], arguments: argparse.Namespace) -> list[Difference]:
    """Returns the rows to show: by default, only changed calls."""
    if arguments.all or name in ("whole trace", "step"):
        return rows
    return [row for row in rows if row.verdict != "within noise" or _has_other_calls(row)]


def _table_lines(title: str, name: str, rows: list[Difference], top: int) -> list[str]:
    return format_table(_table(title, name, rows), limit=top) if rows else [title]


def _folded(rows: Sequence[Difference], shown: Sequence[Difference]) -> list[str]:
    """Returns a line that sums the hidden rows: their share of the time, and their change."""
    kept = {row.name for row in shown}
    hidden = [row for row in rows if row.name not in kept]
    if not hidden:
        return []
    base_ns = sum(row.base_total_ns for row in hidden)
    change_ns = sum(row.total_ns for row in hidden)
    amounts = f"{format_ms(base_ns)}, {change_ns / 1e6:+,.3f} ms"
    return [f"  {len(hidden):,} unchanged, within noise: {amounts} (--all shows them)"]


def _has_other_calls(row: Difference) -> bool:
    return abs(row.new_calls - row.base_calls) >= 0.005


def _table(title: str, name: str, rows: Sequence[Difference]) -> Table:
    columns = [
        Column(name, name),
        Column("base_calls", "calls", "number"),
        Column("new_calls", "now", "number"),
        Column("base_ns", "base ms", "ns"),
        Column("new_ns", "new ms", "ns"),
        Column("change", "change", "change"),
        Column("noise", "noise +-", "share"),
        Column("total_ns", "impact ms", "ns"),
        Column("verdict", "verdict"),
    ]
    cells: dict[str, Callable[[Any], Any]] = {name: attrgetter("name"), "verdict": _verdict_text}
    return Table.of(title, columns, rows, **cells)


def _verdict_text(row: Difference) -> str:
    if row.verdict in ("new", "gone") or not _has_other_calls(row):
        return row.verdict
    more = "more" if row.new_calls > row.base_calls else "fewer"
    return f"{row.verdict}, {more} calls"


def _counts(rows: Sequence[Difference]) -> list[str]:
    if len(rows) < 2:
        return []
    counts = [
        f"{sum(row.verdict == verdict for row in rows)} {verdict}"
        for verdict in ("slower", "faster", "within noise", "noise unknown", "new", "gone")
        if any(row.verdict == verdict for row in rows)
    ]
    return [f"  {', '.join(counts)}"]


def _failing(
    tables: dict[str, list[Difference]], fail_above: float | None
) -> list[tuple[str, Difference]]:
    if fail_above is None:
        return []
    worse = []
    for name, rows in tables.items():
        whole = sum(row.base_total_ns for row in rows)
        for row in rows:
            is_large = name == "whole trace" or row.base_total_ns >= _LEAST_SHARE * whole
            if row.verdict == "slower" and (row.change or 0) * 100 > fail_above and is_large:
                worse.append((name, row))
    return worse


def _verdict_lines(worse: Sequence[tuple[str, Difference]], fail_above: float) -> list[str]:
    if not worse:
        return [f"nothing became slower by more than {fail_above:g} % beyond the noise"]
    return [
        f"slower by more than {fail_above:g} %: {table} {row.name} {(row.change or 0) * 100:+.1f} %"
        for table, row in worse
    ]


def _document(
    base_files: Sequence[str],
    new_files: Sequence[str],
    step: str | None,
    tables: dict[str, list[Difference]],
    worse: Sequence[tuple[str, Difference]],
    notes: Sequence[str],
) -> dict[str, object]:
    return {
        "notes": list(notes),
        "base": list(base_files),
        "new": list(new_files),
        "step": step,
        "tables": {
            name: [
                {**dataclasses.asdict(row), "change": row.change, "noise": row.noise}
                for row in rows
            ]
            for name, rows in tables.items()
        },
        "slower": [{"table": table, "name": row.name} for table, row in worse],
    }


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-profiler compare",
        description="Compares traces, steps, programs, layers and ops by the time of a call, and "
        "marks differences within the noise. With several traces per side, the noise is "
        "measured between them.",
        usage="npu-profiler compare [OPTION ...] (A B | --base A [A ...] --new B [B ...])",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="two traces: before and after")
    parser.add_argument(
        "--base", nargs="+", default=[], metavar="FILE", help="traces before the change"
    )
    parser.add_argument(
        "--new", nargs="+", default=[], metavar="FILE", help="traces after the change"
    )
    parser.add_argument("--by", choices=list(_TABLES), help="one table (default: all)")
    parser.add_argument(
        "--fail-above",
        type=float,
        metavar="PERCENT",
        help="exit with 1 if a whole trace, or a row with 1 %% of a table's time, became slower by "
        "more than this, beyond the noise",
    )
    add_top(parser)
    parser.add_argument(
        "--all", action="store_true", help="also show unchanged rows, otherwise one line"
    )
    add_json(parser)
    return parser
