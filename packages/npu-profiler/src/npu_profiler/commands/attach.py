"""`npu-profiler attach`: records a running job."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_profiler.attaching.attach import attach, detach
from npu_profiler.commands.options import say
from npu_profiler.commands.recording_options import (
    VIEWER,
    add_recording_options,
    recording_options,
)

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Runs the command; returns 0."""
    arguments = _parser().parse_args(words)
    if arguments.stop:
        lines: list[str] | None = detach(arguments.pid)
    else:
        output = Path(arguments.output)
        seconds = None if arguments.start else arguments.seconds
        options = recording_options(arguments, f"process {arguments.pid}")
        lines = attach(arguments.pid, output, seconds=seconds, options=options)
    if lines is None:
        say(f"process {arguments.pid} records until: npu-profiler attach {arguments.pid} --stop")
    else:
        say(*lines, f"open in Perfetto: {VIEWER}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-profiler attach",
        description="Records a running job that was started with NPU_ATTACH=1, without stopping "
        "it.",
    )
    parser.add_argument("pid", type=int, metavar="PID", help="process id of the job")
    add_recording_options(parser)
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="duration of the recording (default: %(default)s)",
    )
    length.add_argument(
        "--start", action="store_true", help="record until --stop, or the end of the job"
    )
    length.add_argument("--stop", action="store_true", help="end the recording of --start")
    return parser
