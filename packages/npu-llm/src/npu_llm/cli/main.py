"""The command ``npu-llm``: which module holds each subcommand.

Options that several of them take stand in npu_llm.cli.arguments; errors and exit codes are those of
npu_runtime.commands.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from npu_runtime.commands import Subcommand, run_command

__all__ = ["main"]

_SUBCOMMANDS = {
    "bench": Subcommand("npu_llm.cli.bench", "measure speed, memory and power"),
    "chat": Subcommand("npu_llm.cli.chat", "talk, turn by turn"),
    "eval": Subcommand("npu_llm.cli.eval", "measure perplexity on a text"),
    "export": Subcommand("npu_llm.cli.export", "write a model into a folder that starts as it is"),
    "generate": Subcommand("npu_llm.cli.generate", "answer one prompt"),
    "info": Subcommand("npu_llm.cli.info", "say what a model is and what memory it needs"),
    "quantize": Subcommand("npu_llm.cli.quantize", "write a model with weights of 8 or 4 bits"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, see npu_runtime.commands."""
    if not sys.warnoptions:
        # What libraries warn their callers of is no matter of who types a command; -W shows it.
        warnings.simplefilter("ignore")
    return run_command("npu-llm", _SUBCOMMANDS, arguments)
