"""`npu-profiler stats`: writes operators, kernels, memory and steps as CSV files."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_profiler.commands.options import add_file
from npu_profiler.queries.spans import launches
from npu_profiler.reading import load_trace
from npu_profiler.reports.stats import RECORDS, make_directory, write_csv

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Runs the command; returns 0."""
    arguments = _parser().parse_args(words)
    trace = load_trace(arguments.file)
    directory = Path(arguments.csv)
    make_directory(directory)
    launched = launches(trace)
    for name, records in RECORDS.items():
        path = directory / f"{name}.csv"
        count = write_csv(path, records.header.split(","), records.rows(trace, launched))
        print(f"wrote {path}: {count:,} rows, {records.meaning}")
    if trace.estimate:
        print(f"times: {trace.estimate['note']}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-profiler stats",
        description="Writes tables of a trace as CSV, for spreadsheets and pandas: "
        + ", ".join(f"{name}.csv ({records.meaning})" for name, records in RECORDS.items())
        + ".",
    )
    add_file(parser)
    parser.add_argument(
        "--csv", required=True, metavar="DIR", help="output directory, created if missing"
    )
    return parser
