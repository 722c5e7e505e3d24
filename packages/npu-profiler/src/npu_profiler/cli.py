"""The command `npu-profiler`: parses its arguments, runs a program under a recording, reports.

What is recorded and how is in `recorder.py`; how a program is run unchanged is in `program.py`.
"""

import argparse
import atexit
import sys
from collections.abc import Sequence
from pathlib import Path

from npu_profiler.errors import TraceError
from npu_profiler.program import ModuleProgram, Program, ScriptProgram
from npu_profiler.recorder import Recording, TraceOptions
from npu_profiler.termination import Termination

__all__ = ["main"]

DEFAULT_OUTPUT = "trace.json"
VIEWER = "https://ui.perfetto.dev"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: The arguments; the process's own if None.

    Returns:
        0, or 2 when the request cannot be met; the traced program's own exit code wins, as the
        program ends the process itself.
    """
    arguments = _parser().parse_args(argv)
    try:
        return _trace(arguments)
    except TraceError as error:
        print(f"npu-profiler: {error}", file=sys.stderr)
        return 2


def _trace(arguments: argparse.Namespace) -> int:
    program = _find_program(arguments)
    recording = Recording(
        Path(arguments.output), TraceOptions(stacks=arguments.stacks, program=program.name)
    )
    recording.start()
    # At exit, not at the script's end: threads that outlive the script and its own atexit
    # functions, registered later and so called earlier, belong to the program.
    termination = Termination(lambda: _finish(recording))
    atexit.register(termination.run_finish)
    termination.install()
    try:
        program.run()
    except KeyboardInterrupt:
        termination.note_interrupt()
        raise
    return 0


def _find_program(arguments: argparse.Namespace) -> Program:
    if arguments.module is not None:
        name, *words = arguments.module or [""]
        return ModuleProgram.find(name, words)
    words = arguments.program
    if not words:
        raise TraceError(
            "trace: needs a script; got none. Name a script, or -m and a module", "script-missing"
        )
    return ScriptProgram.find(words[0], words[1:])


def _finish(recording: Recording) -> None:
    if not recording.is_ours:
        return
    try:
        recording.finish()
    except OSError as error:
        _say([f"{recording.path} was not written: {error.strerror or error}"])
        return
    if recording.summary is not None:
        _say(
            [
                f"wrote {recording.path}",
                *recording.summary.lines(),
                f"open in Perfetto: {VIEWER}",
            ]
        )


def _say(lines: Sequence[str]) -> None:
    if sys.stderr is None or sys.stderr.closed:
        return
    sys.stderr.write("".join(f"npu-profiler: {line}\n" for line in lines))
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="npu-profiler", description="One timeline of Python, aten ops and device programs."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    trace = commands.add_parser(
        "trace",
        help="run a program unchanged and write its timeline",
        description="Runs a script or module as python would, and writes its timeline as a Chrome "
        "trace. The program keeps its arguments, its exit code and its errors.",
        usage="npu-profiler trace [-o FILE] [--stacks] (SCRIPT | -m MODULE) [ARGUMENT ...]",
    )
    trace.add_argument(
        "-o",
        "--output",
        default=DEFAULT_OUTPUT,
        metavar="FILE",
        help="where to write; .json.gz compresses (default: %(default)s)",
    )
    trace.add_argument(
        "--stacks", action="store_true", help="record Python calls as well; several times slower"
    )
    trace.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="run a module and give it all that follows, as python -m",
    )
    trace.add_argument("program", nargs=argparse.REMAINDER, help="the script and its arguments")
    return parser
