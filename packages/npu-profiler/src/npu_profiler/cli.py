"""The command `npu-profiler`: parses its arguments, records a program or a running job, reports.

What is recorded and how is in `recorder.py`; how a program is run unchanged is in `program.py`.
"""

import argparse
import atexit
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from npu_profiler.attach import attach, detach
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
        command: Callable[[argparse.Namespace], int] = arguments.run
        return command(arguments)
    except TraceError as error:
        print(f"npu-profiler: {error}", file=sys.stderr)
        return 2


def _trace(arguments: argparse.Namespace) -> int:
    program = _find_program(arguments)
    recording = Recording(Path(arguments.output), _options(arguments, program.name))
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


def _attach(arguments: argparse.Namespace) -> int:
    if arguments.stop:
        lines: list[str] | None = detach(arguments.pid)
    else:
        output = Path(arguments.output)
        seconds = None if arguments.start else arguments.seconds
        options = _recording_options(arguments, f"process {arguments.pid}")
        lines = attach(arguments.pid, output, seconds=seconds, options=options)
    if lines is None:
        _say([f"process {arguments.pid} records until: npu-profiler attach {arguments.pid} --stop"])
    else:
        _say([*lines, f"open in Perfetto: {VIEWER}"])
    return 0


def _options(arguments: argparse.Namespace, program: str) -> TraceOptions:
    # The first step has what happens once: loading, compiling.
    warmup = arguments.warmup
    if warmup is None:
        warmup = 1 if arguments.steps else 0
    options = _recording_options(arguments, program)
    return dataclasses.replace(options, warmup=warmup, steps=arguments.steps)


def _recording_options(arguments: argparse.Namespace, program: str) -> TraceOptions:
    return TraceOptions(
        stacks=arguments.stacks,
        modules=arguments.modules,
        layers=arguments.layers,
        layers_first=arguments.layers_first,
        layers_every=arguments.layers_every,
        memory=arguments.memory,
        program=program,
    )


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
        usage="npu-profiler trace [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]",
    )
    _add_recording_options(trace)
    trace.add_argument(
        "--steps",
        type=int,
        default=0,
        metavar="N",
        help="record N steps and no more: optimizer steps, prefills and decodes of npu-llm, "
        "torch.profiler's step or npu_profiler.step(), whichever comes first",
    )
    trace.add_argument(
        "--warmup",
        type=int,
        metavar="N",
        help="leave the first N steps out (default: 1 with --steps, else 0)",
    )
    trace.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="run a module and give it all that follows, as python -m",
    )
    trace.add_argument("program", nargs=argparse.REMAINDER, help="the script and its arguments")
    trace.set_defaults(run=_trace)
    _add_attach(commands.add_parser("attach", help="record a job that is running"))
    return parser


def _add_attach(command: argparse.ArgumentParser) -> None:
    command.description = "Records a job that was started with NPU_ATTACH=1, without stopping it."
    command.add_argument("pid", type=int, metavar="PID", help="the job's process id")
    _add_recording_options(command)
    length = command.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=float, default=10.0, help="how long to record (default: %(default)s)"
    )
    length.add_argument("--start", action="store_true", help="record until --stop, or its end")
    length.add_argument("--stop", action="store_true", help="end what --start began")
    command.set_defaults(run=_attach)


def _add_recording_options(command: argparse.ArgumentParser) -> None:
    defaults = TraceOptions()
    command.add_argument(
        "-o",
        "--output",
        default=DEFAULT_OUTPUT,
        metavar="FILE",
        help="where to write; .json.gz compresses (default: %(default)s)",
    )
    command.add_argument(
        "--layers",
        action="store_true",
        help="record the device's layers of some runs of each program",
    )
    command.add_argument(
        "--layers-first",
        type=int,
        default=defaults.layers_first,
        metavar="N",
        help="layers of each program's first N runs (default: %(default)s)",
    )
    command.add_argument(
        "--layers-every",
        type=int,
        default=defaults.layers_every,
        metavar="K",
        help="and of every Kth run after them, 0 for none (default: %(default)s)",
    )
    command.add_argument(
        "--memory", action="store_true", help="record the memory of the process over time"
    )
    command.add_argument(
        "--modules",
        action="store_true",
        help="record calls of torch modules, each with its path in its model",
    )
    command.add_argument(
        "--stacks", action="store_true", help="record Python calls as well; several times slower"
    )
