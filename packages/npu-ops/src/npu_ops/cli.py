"""The command ``npu-ops``: which module holds each subcommand."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from npu_runtime.commands import Subcommand, run_command

__all__ = ["main"]

_SUBCOMMANDS = {
    "conformance": Subcommand(
        "npu_ops.conformance.__main__", "hold a device against the CPU, op by op"
    ),
    "explain": Subcommand("npu_ops.variants.explain", "which kernel serves a call, and why"),
    "monitor": Subcommand(
        "npu_ops.tools.monitor_command",
        "a command's processor and memory over time",
        runs_programs=True,
    ),
    "new": Subcommand("npu_ops.scaffold.command", "write a wheel with an op of your own"),
    "replay": Subcommand(
        "npu_ops.tools.replay_command", "make captured calls again, checked and timed"
    ),
    "run": Subcommand(
        "npu_ops.tools.run_command", "run a program under op tools", runs_programs=True
    ),
    "tune": Subcommand(
        "npu_ops.variants.tune", "measure program and host kernel for calls, and record it"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, see npu_runtime.commands."""
    return run_command("npu-ops", _SUBCOMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
