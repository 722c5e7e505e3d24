"""Commands with subcommands: each is a table of modules and summaries.

A package lists its subcommands in `<package>/commands.toml`, which is read without importing the
package (most import torch). A module is imported when its subcommand is called; npu_runtime and
npu_ops start after the arguments are parsed. So help, versions and wrong calls take 0.1 s.
"""

from __future__ import annotations

import difflib
import enum
import functools
import importlib
import importlib.util
import io
import os
import sys
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from npu_command.command_parser import (
    COMPLETION_SUMMARY,
    HELP_SUMMARY,
    print_completion,
    print_version,
    when_read,
    without_colour,
)
from npu_command.errors import NpuError
from npu_command.exit_status import (
    EXIT_BROKEN_PIPE,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    HANDLED_ERRORS,
    address_space_bytes,
    report_error,
)
from npu_command.import_hooks import deferred_starts, start_packages
from npu_command.interrupt import as_exception, end_at_once, give_back
from npu_command.output import aligned, import_notice, terminal_width

__all__ = [
    "EXIT_BROKEN_PIPE",
    "EXIT_ERROR",
    "EXIT_INTERRUPTED",
    "Command",
    "ErrorPolicy",
    "Subcommand",
    "read_command",
    "run",
    "run_command",
]

_COMPLETION = "completion"
_HELP = "help"
_NO_COLOR = "--no-color"


class ErrorPolicy(enum.Enum):
    """Policies for reporting exceptions that end a subcommand, besides the platform's errors.

    Attributes:
        OURS: the dispatcher reports them by npu_command.exit_status; Ctrl-C ends the process.
        CATCHES_INTERRUPT: the same, but Ctrl-C is a KeyboardInterrupt in the subcommand.
        SHARED: the subcommand runs the user's program; the program's errors propagate. Ctrl-C is a
            KeyboardInterrupt in it; the dispatcher explains that and a closed pipe.
        PROGRAM: as SHARED, but Ctrl-C and a closed pipe end it as they would end python.
    """

    OURS = "ours"
    CATCHES_INTERRUPT = "catches-interrupt"
    SHARED = "shared"
    PROGRAM = "program"


_EXPLAINED: dict[ErrorPolicy, tuple[type[BaseException], ...]] = {
    ErrorPolicy.OURS: HANDLED_ERRORS,
    ErrorPolicy.CATCHES_INTERRUPT: HANDLED_ERRORS,
    ErrorPolicy.SHARED: (KeyboardInterrupt, BrokenPipeError),
    ErrorPolicy.PROGRAM: (),
}


@dataclass(frozen=True)
class Subcommand:
    """A subcommand."""

    # Name of a module with `main(arguments) -> exit code`, which first parses them with a
    # CommandParser. It does not import torch at module level.
    module: str
    summary: str  # summary for the list of subcommands
    errors: ErrorPolicy = ErrorPolicy.OURS  # error reporting
    help_imports: bool = False  # whether its parser needs the packages around its module
    # Whether it runs without the packages' code, or calls start_packages itself.
    is_bare: bool = False


@dataclass(frozen=True)
class Command:
    """A command."""

    name: str  # the command and its distribution, such as "npu-ops"
    summary: str  # its purpose, in a sentence
    subcommands: Mapping[str, Subcommand]  # by name; `completion` is added
    # `module:function` that returns the error that blocks all subcommands, or None; called after a
    # subcommand has parsed its arguments. It does not import torch.
    refusal: str | None = None
    # Whether to ignore Python's warnings, unless the user enabled some.
    hides_warnings: bool = False


@functools.cache
def read_command(package: str) -> Command:
    """Reads the command of an installed package by its import name: npu_llm has npu-llm."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, package
    assert spec.origin is not None, package
    table = tomllib.loads(Path(spec.origin).with_name("commands.toml").read_text("utf-8"))
    subcommands = {
        name: Subcommand(
            row["module"],
            row["summary"],
            ErrorPolicy(row.get("errors", ErrorPolicy.OURS.value)),
            help_imports=row.get("help_imports", False),
            is_bare=row.get("is_bare", False),
        )
        for name, row in table["subcommands"].items()
    }
    return Command(
        package.replace("_", "-"),
        table["summary"],
        subcommands,
        refusal=table.get("refusal"),
        hides_warnings=table.get("hides_warnings", False),
    )


def run_command(command: Command | str, arguments: Sequence[str] | None = None) -> int:
    """Runs the subcommand that the first argument names.

    Args:
        command: the command, or the import name of its package.
        arguments: without the program's name; by default the process's.

    Returns:
        The exit code: the subcommand's; 2 for a wrong call, a platform error or a lack of memory,
        which standard error explains; 130 after Ctrl-C; 141 after a closed pipe.
    """
    if isinstance(command, str):
        command = read_command(command)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == [_NO_COLOR]:
        without_colour()
        del given[0]
    if given[:1] == [_HELP]:  # `help chat` is `chat --help`
        given = [*given[1:], "--help"]
    if not given or given[0] in ("-h", "--help", "--version"):
        return _tell(command, given)
    name, *rest = given
    if name not in (*command.subcommands, _COMPLETION):
        print(f"{_unknown(command, name)}\n{_help(command)}", file=sys.stderr)
        return EXIT_ERROR
    if arguments is None:  # the process is this command
        end_at_once(f"{command.name} {name}")
    return _run(command, name, rest)


def _tell(command: Command, asked: Sequence[str]) -> int:
    """Prints the version, or the subcommands; returns the exit code."""
    try:
        if asked[:1] == ["--version"]:
            print_version(command.name)
        else:
            print(_help(command))
        sys.stdout.flush()  # flush here, where a closed pipe is caught
    except OSError as failure:
        return report_error(command.name, failure)
    return 0 if asked else EXIT_ERROR


def _run(command: Command, name: str, arguments: Sequence[str]) -> int:
    program = f"{command.name} {name}"
    call = _Call(command, name)
    try:
        code = call.run(arguments)
        if call.explained == ():  # the program continues, on other threads and at exit
            return code
        call.explained = HANDLED_ERRORS  # the program has ended; the rest is ours
        sys.stdout.flush()  # flush here, where a closed pipe is caught
        return code
    except NpuError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_ERROR
    except call.explained as error:
        return report_error(program, error)
    except SystemExit as leaving:
        cause = leaving.__context__
        if isinstance(cause, BrokenPipeError) and isinstance(cause, call.explained):
            return report_error(program, cause)  # rich exits this way if it cannot write
        raise


class _Call:
    """One call of a subcommand: parses its arguments, then prepares its requirements.

    `explained` are the exceptions that the dispatcher explains at this point.
    """

    def __init__(self, command: Command, name: str) -> None:
        self._command = command
        self._name = name
        self._around = ExitStack()
        self.explained: tuple[type[BaseException], ...] = HANDLED_ERRORS

    def run(self, arguments: Sequence[str]) -> int:
        """Runs it; returns its exit code."""
        command = self._command
        if self._name == _COMPLETION:
            modules = {one: entry.module for one, entry in command.subcommands.items()}
            return print_completion(command.name, modules, arguments)
        if command.hides_warnings and not sys.warnoptions:
            warnings.simplefilter("ignore")
        subcommand = command.subcommands[self._name]
        has_begun = False

        def begin() -> None:
            nonlocal has_begun
            has_begun = True
            self._begin(subcommand)

        with self._around as around:
            if not subcommand.help_imports:
                around.enter_context(deferred_starts())
            main = importlib.import_module(subcommand.module).main
            around.enter_context(when_read(begin))
            code = int(main(arguments))
        assert has_begun, f"{subcommand.module}.main read no arguments"
        return code

    def _begin(self, subcommand: Subcommand) -> None:
        """Called by the subcommand's parser after it accepted the arguments."""
        _refuse(self._command)
        if not subcommand.is_bare:
            start_packages()
        self.explained = _EXPLAINED[subcommand.errors]
        if subcommand.errors is ErrorPolicy.PROGRAM:
            give_back()
        if subcommand.errors is not ErrorPolicy.OURS:
            self._around.enter_context(as_exception())


def _refuse(command: Command) -> None:
    if command.refusal is None:
        return
    module, function = command.refusal.split(":")
    with import_notice():  # of torch
        wrong: NpuError | None = getattr(importlib.import_module(module), function)()
    if wrong is not None:
        raise wrong


def _unknown(command: Command, name: str) -> str:
    known = [*command.subcommands, _COMPLETION, _HELP, _NO_COLOR, "--version"]
    near = difflib.get_close_matches(name, known, n=1)
    advice = f" Did you mean {near[0]!r}?" if near else ""
    return f"{command.name}: no command {name!r}.{advice}"


def _help(command: Command) -> str:
    rows = {name: one.summary for name, one in command.subcommands.items()}
    rows |= {_COMPLETION: COMPLETION_SUMMARY, _HELP: HELP_SUMMARY}
    listed = aligned(sorted(rows.items()), indent=2, width=terminal_width())
    name = command.name
    usage = f"usage: {name} [{_NO_COLOR}] COMMAND ..."
    ends = [f"{name} COMMAND --help", f"{name} --version"]
    return "\n".join([usage, "", command.summary, "", *listed, "", *ends])


# Below this, libraries that torch loads abort the process (OpenBLAS with 0.5 GB,
# torch 2.13, 2026-11-22).
_LEAST_BYTES = 1_000_000_000


def run(package: str) -> int:
    """Runs a package's command (npu_llm) as the process's command; returns its exit code."""
    program = package.replace("_", "-")
    refusal = _open_streams() or _refuse_memory()
    if refusal is not None:
        print(f"{program}: {refusal}", file=sys.stderr)
        return EXIT_ERROR
    end_at_once(program)
    return run_command(package)


def _open_streams() -> str | None:
    """Replaces a closed input or error stream; rejects a closed output."""
    # A closed stream is None. This order gives each stream its standard descriptor.
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123  # for the life of the process
    is_closed = sys.stdout is None
    if is_closed:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Without a UTF-8 locale, a character that it lacks must not end the command.
            stream.reconfigure(errors="replace" if stream.isatty() else "backslashreplace")
    if is_closed:
        return "standard output must be open, got a closed one. Send it to a file. [output-closed]"
    return None


def _refuse_memory() -> str | None:
    limit = address_space_bytes()
    if limit is None or limit >= _LEAST_BYTES:
        return None
    return (
        f"the address space must be at least {_LEAST_BYTES / 1e9:.0f} GB for the libraries, got "
        f"{limit / 1e9:.2f} GB from ulimit -v. Raise the limit. [memory-exhausted]"
    )
