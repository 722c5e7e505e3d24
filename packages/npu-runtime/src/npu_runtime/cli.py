"""The command `npu-runtime`: which module holds each subcommand."""

import sys
from collections.abc import Sequence

from npu_command.subcommands import Command, Subcommand, run_command

__all__ = ["COMMAND", "main"]

_SUBCOMMANDS = {
    "doctor": Subcommand(
        "npu_runtime.commands.doctor", "what keeps the NPU from serving, and the fix"
    ),
    "info": Subcommand("npu_runtime.commands.info", "which device serves as npu, and why"),
}
COMMAND = Command("npu-runtime", "The npu device of this machine.", _SUBCOMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, see npu_command.subcommands."""
    return run_command(COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())
