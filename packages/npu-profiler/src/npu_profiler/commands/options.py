"""Shared options of commands: the trace file and the number of rows; output on stderr."""

import argparse
import sys

from npu_command.output import is_quiet
from npu_profiler.errors import TraceError

__all__ = ["add_file", "add_top", "check_top", "say"]


def say(*lines: str) -> None:
    """Prints lines immediately; nothing with --quiet or without stderr."""
    if is_quiet() or sys.stderr is None or sys.stderr.closed:
        return
    sys.stderr.write("".join(f"npu-profiler: {line}\n" for line in lines))
    sys.stderr.flush()


DEFAULT_TOP = 15


def add_file(parser: argparse.ArgumentParser) -> None:
    """Adds the trace file."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a trace of npu-profiler, .json or .json.gz, possibly of a killed program",
    )


def add_top(parser: argparse.ArgumentParser) -> None:
    """Adds the number of rows of a table."""
    parser.add_argument(
        "--top",
        type=int,
        default=DEFAULT_TOP,
        metavar="N",
        help="maximum rows of a table, 0 for all (default: %(default)s)",
    )


def check_top(top: int) -> None:
    """Raises [summary-option] for a number of rows below 0."""
    if top < 0:
        raise TraceError(
            f"`--top` must be 0 or more, got {top}. Pass a number of rows.", code="summary-option"
        )
