"""`npu-profiler trace`: runs a program unchanged and records it."""

import argparse
import atexit
import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_command.running import ModuleProgram, Program, ScriptProgram
from npu_profiler.commands.options import say
from npu_profiler.commands.recording_options import (
    VIEWER,
    add_recording_options,
    recording_options,
)
from npu_profiler.errors import TraceError
from npu_profiler.recording.recorder import Recording, TraceOptions
from npu_profiler.signals import Termination

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Runs the command; the process exits with the traced program's exit code."""
    arguments = _parser().parse_args(words)
    program = _find_program(arguments)
    recording = Recording(Path(arguments.output), _options(arguments, program.name))
    recording.start()
    if arguments.open:  # registered first, so called last, when the trace is written
        atexit.register(_show, recording)
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


def _options(arguments: argparse.Namespace, program: str) -> TraceOptions:
    # The first step includes one-time work: loading, compiling.
    warmup = arguments.warmup
    if warmup is None:
        warmup = 1 if arguments.steps else 0
    options = recording_options(arguments, program)
    return dataclasses.replace(options, warmup=warmup, steps=arguments.steps)


def _find_program(arguments: argparse.Namespace) -> Program:
    if arguments.module is not None:
        name, *words = arguments.module or [""]
        return ModuleProgram.find(name, words)
    words = arguments.program
    if not words:
        raise TraceError(
            "trace: a script must be given, got none. Name a script, or -m and a module.",
            code="script-missing",
        )
    return ScriptProgram.find(words[0], words[1:])


def _finish(recording: Recording) -> None:
    if not recording.is_ours:
        return
    try:
        recording.finish()
    except OSError as error:
        say(f"{recording.path} was not written: {error.strerror or error}")
        return
    if recording.summary is not None:
        say(f"wrote {recording.path}", *recording.summary.lines(), f"open in Perfetto: {VIEWER}")


def _show(recording: Recording) -> None:
    """Serves the page in a separate process: this one cannot start threads at exit."""
    if recording.summary is None or not recording.is_ours:
        return
    command = [sys.executable, "-m", "npu_profiler", "view", "--open", str(recording.path)]
    with contextlib.suppress(KeyboardInterrupt):
        subprocess.run(command, check=False)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-profiler trace",
        description="Runs a script or module like python, and writes its timeline as a Chrome "
        "trace. The program keeps its arguments, its exit code and its errors.",
        usage="npu-profiler trace [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]",
    )
    add_recording_options(parser)
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        metavar="N",
        help="record only N steps: optimizer steps, prefills and decodes of npu-llm, "
        "torch.profiler's step or npu_profiler.step(), whichever comes first",
    )
    parser.add_argument(
        "--warmup",
        type=int,
        metavar="N",
        help="leave the first N steps out (default: 1 with --steps, else 0)",
    )
    parser.add_argument(
        "--open", action="store_true", help="show the trace in the browser afterwards, until Ctrl-C"
    )
    parser.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="run a module with the remaining arguments, like python -m",
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the script and its arguments")
    return parser
