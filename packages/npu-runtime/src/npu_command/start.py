"""Starts a command: streams, memory and Ctrl-C first, then its subcommand is imported."""

from __future__ import annotations

import io
import os
import sys

from npu_command.endings import EXIT_ERROR, address_space_bytes
from npu_command.interrupt import end_at_once
from npu_command.subcommands import read_command, run_command

__all__ = ["run"]

# Below this, libraries that torch loads end the process on their own (OpenBLAS with 0.5 GB,
# torch 2.13, 2026-11-22).
_LEAST_BYTES = 1_000_000_000


def run(package: str) -> int:
    """Runs a package's command as the process's; returns its exit code.

    Args:
        package: import name, npu_llm for the command npu-llm.
    """
    program = package.replace("_", "-")
    refusal = _open_streams() or _refuse_memory()
    if refusal is not None:
        print(f"{program}: {refusal}", file=sys.stderr)
        return EXIT_ERROR
    end_at_once(program)
    return run_command(read_command(package))


def _open_streams() -> str | None:
    """Gives a closed input or error stream something to stand on; refuses a closed output."""
    # Python has None for a closed stream. In this order, so that each gets its own descriptor.
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123  # for the life of the process
    is_closed = sys.stdout is None
    if is_closed:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Where the locale has no UTF-8: a sign that it lacks must not end the command.
            stream.reconfigure(errors="replace" if stream.isatty() else "backslashreplace")
    if is_closed:
        return "standard output: must be open; got a closed one. Send it to a file. [output-closed]"
    return None


def _refuse_memory() -> str | None:
    limit = address_space_bytes()
    if limit is None or limit >= _LEAST_BYTES:
        return None
    return (
        f"memory: the libraries alone need {_LEAST_BYTES / 1e9:.0f} GB of addresses; ulimit -v "
        f"allows {limit / 1e9:.2f} GB. Raise the limit. [memory-exhausted]"
    )
