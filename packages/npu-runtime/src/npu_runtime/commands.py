"""Commands with subcommands, for the wheels above: each is a table of modules and what they do.

A module is imported when its subcommand is called, so that none pays for another. The command
``npu-runtime`` itself is cli.py.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from npu_command.endings import ENDINGS, EXIT_BROKEN_PIPE, EXIT_ERROR, EXIT_INTERRUPTED, end
from npu_command.interrupt import as_exception, end_at_once
from npu_runtime.errors import NpuError
from npu_runtime.refusal import refusal

__all__ = ["EXIT_BROKEN_PIPE", "EXIT_ERROR", "EXIT_INTERRUPTED", "Subcommand", "run_command"]


@dataclass(frozen=True)
class Subcommand:
    """A subcommand.

    Attributes:
        module: name of a module with `main(arguments) -> exit code`.
        summary: what it does, for the list of subcommands.
        runs_programs: whether it runs a program of its user, whose errors are its own and which
            has Ctrl-C as an exception; elsewhere Ctrl-C ends the process.
    """

    module: str
    summary: str
    runs_programs: bool = False


def run_command(
    program: str, subcommands: Mapping[str, Subcommand], arguments: Sequence[str] | None = None
) -> int:
    """Hands the arguments to the subcommand that the first of them names.

    Args:
        program: name of the command, such as "npu-ops".
        subcommands: by name.
        arguments: without the program's name; those of the process by default.

    Returns:
        The exit code: the subcommand's own, 2 for a wrong call, an error of the platform or memory
        that is not there, which is explained on standard error, 130 after Ctrl-C, 141 when whoever
        reads standard output has gone.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_help(program, subcommands))
        return 0 if given else EXIT_ERROR
    name, *rest = given
    if name not in subcommands:
        print(f"{program}: no command {name!r}.\n{_help(program, subcommands)}", file=sys.stderr)
        return EXIT_ERROR
    if arguments is None:  # the process is this command
        end_at_once(f"{program} {name}")
    known = ENDINGS
    try:
        if (wrong := refusal()) is not None:
            raise wrong
        main = importlib.import_module(subcommands[name].module).main
        if subcommands[name].runs_programs:
            known = (KeyboardInterrupt, BrokenPipeError)
        with as_exception() if subcommands[name].runs_programs else nullcontext():
            code = int(main(rest))
        known = ENDINGS  # the program has ended: what follows is ours
        sys.stdout.flush()  # here, where a reader that has gone is caught
        return code
    except NpuError as error:
        print(f"{program} {name}: {error}", file=sys.stderr)
        return EXIT_ERROR
    except known as error:
        return end(f"{program} {name}", error)
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # so ends rich what it cannot write
            return end(f"{program} {name}", leaving.__context__)
        raise


def _help(program: str, subcommands: Mapping[str, Subcommand]) -> str:
    width = max(map(len, subcommands))
    rows = [f"  {name:{width}}  {one.summary}" for name, one in sorted(subcommands.items())]
    return "\n".join([f"usage: {program} COMMAND ...", "", *rows, "", f"{program} COMMAND --help"])
