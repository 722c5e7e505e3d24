"""The subcommand ``npu-ops monitor``: CPU, memory and device memory of a command over time."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from npu_command.charts import check_matplotlib
from npu_command.command_parser import CommandParser
from npu_ops.errors import OperatorInputError

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Runs the subcommand; returns the command's exit code."""

    def check(options: argparse.Namespace) -> None:
        if options.command in ([], ["--"]):
            parser.error("a command must follow --")

    parser = CommandParser(
        prog="npu-ops monitor",
        usage="npu-ops monitor -o FILE.csv [--plot FILE.svg] [--interval S] -- COMMAND ...",
        description="Run a command and sample it with all its child processes.",
        check=check,
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="CSV file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="chart as SVG")
    parser.add_argument(
        "--interval", type=float, default=0.1, metavar="S", help="seconds between samples (0.1)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    from npu_ops.debugging.monitor import ProcessMonitor  # late: help does not need torch

    if options.plot is not None:
        check_matplotlib("npu-ops", OperatorInputError)
    with tempfile.TemporaryDirectory(prefix="npu-monitor-") as accounts:
        environment = os.environ | {"NPU_OPS_MEMORY_DIR": accounts}
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as error:
            parser.error(f"{command[0]} does not start: {error.strerror}")
        monitor = ProcessMonitor(process.pid, interval_s=options.interval, accounts=accounts)
        with monitor:
            code = process.wait()
    monitor.write_csv(options.output)
    if options.plot is not None:
        monitor.write_svg(options.plot)
    print(f"{monitor.summary()}; written to {options.output}")
    return code if code >= 0 else 128 - code
