"""The command ``npu-ops``: which module holds each subcommand."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from npu_command.subcommands import Command, Ending, Subcommand, run_command
from npu_runtime.refusal import refusal

__all__ = ["COMMAND", "main"]

_SUBCOMMANDS = {
    "conformance": Subcommand(
        "npu_ops.conformance.__main__", "hold a device against the CPU, op by op"
    ),
    "explain": Subcommand("npu_ops.variants.explain", "which kernel serves a call, and why"),
    "monitor": Subcommand(
        "npu_ops.tools.commands.monitor",
        "a command's processor and memory over time",
        ending=Ending.SHARED,
    ),
    "new": Subcommand("npu_ops.scaffold.command", "write a wheel with an op of your own"),
    "replay": Subcommand(
        "npu_ops.tools.commands.replay", "make captured calls again, checked and timed"
    ),
    "run": Subcommand(
        "npu_ops.tools.commands.run", "run a program under op tools", ending=Ending.SHARED
    ),
    "tune": Subcommand(
        "npu_ops.variants.tune", "measure program and host kernel for calls, and record it"
    ),
}
COMMAND = Command(
    "npu-ops", "Ops on the npu device: checked, measured, explained.", _SUBCOMMANDS, refusal
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, see npu_command.subcommands."""
    return run_command(COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())
