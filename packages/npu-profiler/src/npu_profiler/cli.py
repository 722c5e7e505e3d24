"""The command `npu-profiler`: which module holds each subcommand.

`trace` must not import torch before the program does, and the commands that read files need none.
"""

from collections.abc import Sequence

from npu_command.subcommands import Command, Ending, Subcommand, run_command

__all__ = ["COMMAND", "main"]

_SUBCOMMANDS = {
    "attach": Subcommand(
        "npu_profiler.commands.attach", "record a job that is running", Ending.CATCHES_INTERRUPT
    ),
    "compare": Subcommand("npu_profiler.commands.compare", "what became slower between traces"),
    "memory": Subcommand("npu_profiler.commands.memory", "who holds the device's memory, and when"),
    "stats": Subcommand("npu_profiler.commands.stats", "tables of a trace as CSV files"),
    "summary": Subcommand("npu_profiler.commands.summary", "where the time of a trace went"),
    "llm": Subcommand(
        "npu_profiler.commands.llm", "measure a language model's speed", Ending.CATCHES_INTERRUPT
    ),
    "matmul": Subcommand("npu_profiler.commands.matmul", "measure products over sizes and dtypes"),
    "mlp": Subcommand("npu_profiler.commands.mlp", "measure a two-layer network over its sizes"),
    "roofline": Subcommand(
        "npu_profiler.commands.roofline", "show how near each layer is to the device's limits"
    ),
    "trace": Subcommand(
        "npu_profiler.commands.trace",
        "run a program unchanged and write its timeline",
        Ending.PROGRAM,
    ),
    "view": Subcommand(
        "npu_profiler.commands.view",
        "show a trace as a page in the browser",
        Ending.CATCHES_INTERRUPT,
    ),
}
COMMAND = Command(
    "npu-profiler", "One timeline of Python, aten ops and device programs.", _SUBCOMMANDS
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, see npu_command.subcommands.

    The program that `trace` runs ends as it would under python.
    """
    return run_command(COMMAND, arguments)
