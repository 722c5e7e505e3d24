"""Starts a command: streams, memory and Ctrl-C first, then its package is imported and called."""

from __future__ import annotations

import importlib
import os
import sys

from npu_command.endings import ENDINGS, EXIT_ERROR, address_space_bytes, end
from npu_command.interrupt import end_at_once

__all__ = ["run"]

# Below this, libraries that torch loads end the process on their own (OpenBLAS with 0.5 GB,
# torch 2.13, 2026-11-22).
_LEAST_BYTES = 1_000_000_000


def run(package: str) -> int:
    """Runs `<package>.cli.main()` as the process's command; returns its exit code.

    Args:
        package: import name, npu_llm for the command npu-llm.
    """
    program = package.replace("_", "-")
    refusal = _open_streams() or _refuse_memory()
    if refusal is not None:
        print(f"{program}: {refusal}", file=sys.stderr)
        return EXIT_ERROR
    end_at_once(program)
    try:
        command = importlib.import_module(f"{package}.cli")
    except ENDINGS as error:
        return end(program, error)
    return int(command.main())


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
