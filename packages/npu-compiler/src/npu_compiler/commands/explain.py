"""`npu-compiler explain SCRIPT`: runs a Python script and lists the graphs that it compiled."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer
from npu_compiler.errors import OptionError

__all__ = ["check_script", "main", "run_script"]

_OUTPUT, _ERROR = 1, 2  # descriptors


def main(arguments: Sequence[str]) -> int:
    """Runs the script; returns its exit code."""
    parser = CommandParser(
        prog="npu-compiler explain",
        description="Run a script; report graphs compiled for npu, and calls that run eagerly.",
        check=lambda options: check_script(options.script),
    )
    add_json(parser)
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    given = parser.parse_args(arguments)
    from torch._dynamo.utils import counters  # not needed for help

    from npu_compiler.explanations.explain import Explanation, graph_breaks_since
    from npu_compiler.graph_compiler.records import collecting

    before = dict(counters["graph_break"])
    started = time.perf_counter()
    with collecting() as records:
        code = run_script(given.script, given.arguments)
    explanation = Explanation(
        tuple(records), graph_breaks_since(before), time.perf_counter() - started
    )
    give_answer(given.json, explanation.as_dict(), lambda: print(explanation))
    return code


def check_script(script: Path) -> None:
    """Raises OptionError [script-absent] if there is no such file."""
    if not os.path.isfile(script):  # noqa: PTH113  # Path.is_file raises for a name too long
        raise OptionError(
            f"`script` must be a Python file, got {script}. Name a script that uses "
            "torch.compile(backend='npu').",
            code="script-absent",
        )


def run_script(script: Path, arguments: Sequence[str]) -> int:
    """Runs a script as `python script` does; returns its exit code.

    Its output goes to standard error, because standard output is for the command's report. Raises
    [script-absent].
    """
    check_script(script)
    kept_arguments, kept_path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with _output_as_error():
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    finally:
        sys.argv, sys.path[:] = kept_arguments, kept_path
    return 0


@contextlib.contextmanager
def _output_as_error() -> Iterator[None]:
    """Redirects standard output to standard error, also for child processes of the script."""
    sys.stdout.flush()
    kept = os.dup(_OUTPUT)
    os.dup2(_ERROR, _OUTPUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, _OUTPUT)
        os.close(kept)
