"""`npu-profiler summary`: shows times by op, program, layer, module or line."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer
from npu_profiler.commands.options import add_file, add_top, check_top
from npu_profiler.queries.overview import Overview, overview
from npu_profiler.queries.spans import launches
from npu_profiler.reading import Trace, load_trace
from npu_profiler.reports.summary import VIEWS, figure_lines, heading_lines, missing_note
from npu_profiler.reports.tables import Table, format_table

__all__ = ["give_summary", "main"]

# The default for --by: those that a trace has.
_USUAL = ("op", "program", "type")


def main(words: Sequence[str]) -> int:
    """Runs the command; returns 0."""
    arguments = _parser().parse_args(words)
    check_top(arguments.top)
    trace = load_trace(arguments.file)
    give_summary(
        trace, [arguments.by] if arguments.by else _USUAL, top=arguments.top, json=arguments.json
    )
    return 0


def give_summary(trace: Trace, views: Sequence[str], *, top: int, json: Path | None) -> None:
    """Prints a trace's figures and tables of `VIEWS`, or writes them as JSON.

    A single empty view prints the reason; a `top` of 0 shows all rows.
    """
    launched = launches(trace)
    tables = {name: VIEWS[name](trace, launched) for name in views}
    found = overview(trace)
    lines = [*heading_lines(trace), "", *figure_lines(trace, found)]
    for name, table in tables.items():
        if table.rows:
            lines += ["", *format_table(table, limit=top)]
        elif len(views) == 1:
            lines += ["", missing_note(name, trace)]
    document = _document(trace, found, tables, top)
    give_answer(json, document, lambda: print("\n".join(lines)))


def _document(
    trace: Trace, found: Overview, tables: dict[str, Table], top: int
) -> dict[str, object]:
    return {
        "file": str(trace.path),
        "is_complete": trace.is_complete,
        "facts": dict(trace.facts),
        "overview": dataclasses.asdict(found),
        "tables": {name: table.records()[: top or None] for name, table in tables.items()},
        "missing": {
            name: missing_note(name, trace) for name, table in tables.items() if not table.rows
        },
    }


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-profiler summary",
        description="Summarizes a trace: wall time, busy time of the device, the host's work in "
        "its gaps, fallbacks and copies, and tables.",
    )
    add_file(parser)
    parser.add_argument(
        "--by",
        choices=list(VIEWS),
        help="one table: by op, by device program, by type of layers, by layer, by torch module, "
        "by Python line (default: op, program and type)",
    )
    add_top(parser)
    add_json(parser)
    return parser
