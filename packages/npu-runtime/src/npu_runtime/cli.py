"""The command `npu-runtime` as a function; commands.toml lists its subcommands."""

import sys
from functools import partial

from npu_command.subcommands import run_command

__all__ = ["main"]

main = partial(run_command, "npu_runtime")

if __name__ == "__main__":
    sys.exit(main())
