"""The command `npu-profiler`: a table of its subcommands, and what becomes of their errors.

A subcommand's module is imported when it is called: `trace` must not import torch before the
program does, and those that read files need none at all. For that reason the table is not run by
npu_runtime.commands, which comes with torch.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from npu_command.endings import ENDINGS, EXIT_ERROR, end
from npu_command.interrupt import as_exception, end_at_once, give_back
from npu_profiler.errors import TraceError

__all__ = ["SUBCOMMANDS", "Subcommand", "main"]


class Subcommand(NamedTuple):
    """A subcommand.

    Attributes:
        module: Name of a module with `main(arguments) -> exit code`.
        summary: What it does, for the list of subcommands.
    """

    module: str
    summary: str


SUBCOMMANDS = {
    "attach": Subcommand("npu_profiler.commands.attach", "record a job that is running"),
    "compare": Subcommand("npu_profiler.commands.compare", "what became slower between traces"),
    "memory": Subcommand("npu_profiler.commands.memory", "who holds the device's memory, and when"),
    "stats": Subcommand("npu_profiler.commands.stats", "tables of a trace as CSV files"),
    "summary": Subcommand("npu_profiler.commands.summary", "where the time of a trace went"),
    "llm": Subcommand("npu_profiler.commands.llm", "measure a language model's speed"),
    "matmul": Subcommand("npu_profiler.commands.matmul", "measure products over sizes and dtypes"),
    "mlp": Subcommand("npu_profiler.commands.mlp", "measure a two-layer network over its sizes"),
    "roofline": Subcommand(
        "npu_profiler.commands.roofline", "show how near each layer is to the device's limits"
    ),
    "trace": Subcommand(
        "npu_profiler.commands.trace", "run a program unchanged and write its timeline"
    ),
    "view": Subcommand("npu_profiler.commands.view", "show a trace as a page in the browser"),
}

# These run programs of others, whose own interrupts and closed pipes are not ours to explain.
_RUNS_PROGRAMS = {"trace"}
# These have something to do when Ctrl-C comes: leave a job, a server, a command that they started.
_TAKE_INTERRUPT = {"attach", "llm", "view"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: The arguments; the process's own if None.

    Returns:
        The subcommand's own code; 2 when the request cannot be met, which is explained on stderr.
        130 after Ctrl-C and 141 when whoever reads stdout has gone, but for `trace`: there the
        program's own end wins.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] in ("-h", "--help"):
        print(_help())
        return 0 if given else EXIT_ERROR
    name, *words = given
    if name not in SUBCOMMANDS:
        print(f"npu-profiler: no command {name!r}.\n{_help()}", file=sys.stderr)
        return EXIT_ERROR
    try:
        if argv is None:  # the process is this command
            end_at_once(f"npu-profiler {name}")
        run = importlib.import_module(SUBCOMMANDS[name].module).main
        if name in _RUNS_PROGRAMS:
            give_back()
            return int(run(words))
        with as_exception() if name in _TAKE_INTERRUPT else nullcontext():
            return _run(run, words)
    except TraceError as error:
        print(f"npu-profiler: {error}", file=sys.stderr)
        return EXIT_ERROR


def _run(run: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    try:
        code = run(words)
        sys.stdout.flush()  # here, where a reader that has gone is caught
        return code
    except ENDINGS as error:
        return end("npu-profiler", error)


def _help() -> str:
    width = max(map(len, SUBCOMMANDS))
    rows = [f"  {name:{width}}  {one.summary}" for name, one in sorted(SUBCOMMANDS.items())]
    return "\n".join(
        [
            "usage: npu-profiler COMMAND ...",
            "",
            "One timeline of Python, aten ops and device programs.",
            "",
            *rows,
            "",
            "npu-profiler COMMAND --help",
        ]
    )
