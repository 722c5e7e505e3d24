"""The command ``npu-compiler``: which module holds each subcommand."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from npu_command.subcommands import Command, Ending, Subcommand, run_command
from npu_runtime.refusal import refusal

__all__ = ["COMMAND", "main"]

_SUBCOMMANDS = {
    "cache": Subcommand("npu_compiler.commands.cache", "list or remove the programs that are kept"),
    "check": Subcommand(
        "npu_compiler.readiness.rules", "say whether an exported model suits an NPU"
    ),
    "explain": Subcommand(
        "npu_compiler.commands.explain",
        "run a script and say what was compiled",
        ending=Ending.SHARED,
    ),
    "show": Subcommand(
        "npu_compiler.explanations.show", "render the dumps of NPU_COMPILE_DEBUG as one HTML page"
    ),
    "tune": Subcommand(
        "npu_compiler.commands.tune",
        "measure ways to compile a script's graphs",
        ending=Ending.SHARED,
    ),
}
COMMAND = Command("npu-compiler", "Graphs as programs of the npu device.", _SUBCOMMANDS, refusal)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, see npu_command.subcommands."""
    return run_command(COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())
