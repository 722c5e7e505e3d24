"""The subcommand ``npu-ops replay``: repeats, checks and times captured calls."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_ops.debugging.capture_folders import find_captures

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Runs the subcommand; returns 1 if a call differs from its record or from the CPU."""
    parser = CommandParser(
        prog="npu-ops replay",
        description="Replay captured calls on any device, with checks and times.",
        check=lambda given: find_captures(given.directory),
    )
    parser.add_argument("directory", help="directory of npu-ops run --capture, or one folder in it")
    parser.add_argument("--device", default="npu", help="device of the replay (default: npu)")
    parser.add_argument(
        "--acc-check",
        action="store_true",
        help="compare with the recorded results, and with the CPU in float64",
    )
    parser.add_argument(
        "--run-times", type=int, default=1, metavar="N", help="timed runs of each call (default: 1)"
    )
    parser.add_argument(
        "--only-forward", action="store_true", help="leave out calls of the backward pass"
    )
    parser.add_argument(
        "--sync-time", action="store_true", help="include the device's work in each run's time"
    )
    parser.add_argument(
        "--op", action="append", default=[], metavar="NAME", help="only ops of that name or pattern"
    )
    parser.add_argument(
        "-i",
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="module to import first, for ops that it defines",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all rows")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write an HTML report")
    parser.add_argument(
        "--rows", type=int, default=40, metavar="N", help="maximum rows to print (default: 40)"
    )
    options = parser.parse_args(arguments)
    import torch  # late: help does not need them

    from npu_ops.debugging.replay import replay_directory, replay_report

    try:
        torch.empty(0, device=options.device)
        for module in options.imports:
            importlib.import_module(module)
    except (RuntimeError, ImportError) as error:
        parser.error(str(error))
    replays = list(
        replay_directory(
            options.directory,
            options.device,
            names=options.op,
            is_checked=options.acc_check,
            run_times=options.run_times,
            is_only_forward=options.only_forward,
            is_synchronized=options.sync_time,
        )
    )
    report = replay_report(replays, options.device)
    print(report.table(options.rows))
    if options.csv is not None:
        report.write_csv(options.csv)
    if options.html is not None:
        report.write_html(options.html)
    return 0 if report.is_passed else 1
