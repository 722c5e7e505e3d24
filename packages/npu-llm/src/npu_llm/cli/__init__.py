"""The command `npu-llm` as a function; commands.toml lists its subcommands."""

from functools import partial

from npu_command.subcommands import run_command

__all__ = ["main"]

main = partial(run_command, "npu_llm")
