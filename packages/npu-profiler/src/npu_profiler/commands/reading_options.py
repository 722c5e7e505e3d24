"""What the commands that read a trace share: its file, and how many rows are shown."""

import argparse

from npu_profiler.errors import TraceError

__all__ = ["add_file", "add_top", "check_top"]

DEFAULT_TOP = 15


def add_file(parser: argparse.ArgumentParser) -> None:
    """Adds the trace file."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a trace that npu-profiler wrote, .json or .json.gz; of a killed program as well",
    )


def add_top(parser: argparse.ArgumentParser) -> None:
    """Adds how many rows a table has."""
    parser.add_argument(
        "--top",
        type=int,
        default=DEFAULT_TOP,
        metavar="N",
        help="rows of a table, 0 for all (default: %(default)s)",
    )


def check_top(top: int) -> None:
    """Refuses a number of rows below 0.

    Raises:
        TraceError: [summary-option] It is.
    """
    if top < 0:
        raise TraceError(
            f"--top: must be 0 or more; got {top}. Pass a number of rows.", code="summary-option"
        )
