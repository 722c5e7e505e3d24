"""The command ``npu-compiler``: which module holds each subcommand."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from npu_runtime.commands import Subcommand, run_command

__all__ = ["main"]

_SUBCOMMANDS = {
    "cache": Subcommand("npu_compiler.cache_command", "list or remove the programs that are kept"),
    "check": Subcommand(
        "npu_compiler.readiness.rules", "say whether an exported model suits an NPU"
    ),
    "explain": Subcommand(
        "npu_compiler.explain_command", "run a script and say what was compiled", runs_programs=True
    ),
    "show": Subcommand(
        "npu_compiler.show", "render the dumps of NPU_COMPILE_DEBUG as one HTML page"
    ),
    "tune": Subcommand(
        "npu_compiler.tuning.command",
        "measure ways to compile a script's graphs",
        runs_programs=True,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, see npu_runtime.commands."""
    return run_command("npu-compiler", _SUBCOMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
