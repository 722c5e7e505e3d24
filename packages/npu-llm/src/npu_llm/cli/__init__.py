"""The command `npu-llm` as a function; its subcommands are in commands.toml."""

from functools import partial

from npu_command.subcommands import run_command

__all__ = ["main"]

main = partial(run_command, "npu_llm")
