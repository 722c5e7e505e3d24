"""The command `npu-profiler` as a function; commands.toml lists its subcommands.

A program run by `trace` exits as it would under python.
"""

import sys
from functools import partial

from npu_command.subcommands import run_command

__all__ = ["main"]

main = partial(run_command, "npu_profiler")

if __name__ == "__main__":
    sys.exit(main())
