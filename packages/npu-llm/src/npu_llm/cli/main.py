"""The command ``npu-llm``: which module holds each subcommand.

Errors and exit codes are those of npu_command.subcommands.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from npu_command.subcommands import Command, Subcommand, run_command
from npu_runtime.refusal import refusal

__all__ = ["COMMAND", "main"]

_SUBCOMMANDS = {
    "bench": Subcommand("npu_llm.cli.bench", "measure speed, memory and power"),
    "chat": Subcommand("npu_llm.cli.chat", "talk, turn by turn"),
    "eval": Subcommand("npu_llm.cli.eval", "measure perplexity on a text"),
    "export": Subcommand(
        "npu_llm.cli.export", "write a model to a folder that starts without building"
    ),
    "generate": Subcommand("npu_llm.cli.generate", "answer one prompt"),
    "info": Subcommand("npu_llm.cli.info", "show what a model is and how much memory it needs"),
    "quantize": Subcommand("npu_llm.cli.quantize", "write a model with weights of 8 or 4 bits"),
}
COMMAND = Command("npu-llm", "Language models on the npu device.", _SUBCOMMANDS, refusal)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, see npu_command.subcommands."""
    if not sys.warnoptions:
        # Warnings of libraries to their callers do not concern who types a command; -W shows them.
        warnings.simplefilter("ignore")
    return run_command(COMMAND, arguments)
