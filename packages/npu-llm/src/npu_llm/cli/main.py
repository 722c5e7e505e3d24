"""The command `npu-llm` as a function; commands.toml lists its subcommands."""

import sys
from collections.abc import Sequence

from npu_command.subcommands import read_command, run_command

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, as npu_command.subcommands says; returns its exit code."""
    return run_command(read_command("npu_llm"), arguments)


if __name__ == "__main__":
    sys.exit(main())
