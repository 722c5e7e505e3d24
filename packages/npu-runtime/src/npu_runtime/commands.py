"""Commands with subcommands, for the wheels above: each is a table of modules and what they do.

A module is imported when its subcommand is called, so that none pays for another. The command
``npu-runtime`` itself is cli.py.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npu_runtime.errors import NpuError

__all__ = ["EXIT_BROKEN_PIPE", "EXIT_ERROR", "EXIT_INTERRUPTED", "Subcommand", "run_command"]

EXIT_ERROR = 2
# As a shell counts a process that a signal ended: 128 and the signal's number.
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


@dataclass(frozen=True)
class Subcommand:
    """A subcommand.

    Attributes:
        module: name of a module with `main(arguments) -> exit code`.
        summary: what it does, for the list of subcommands.
    """

    module: str
    summary: str


def run_command(
    program: str, subcommands: Mapping[str, Subcommand], arguments: Sequence[str] | None = None
) -> int:
    """Hands the arguments to the subcommand that the first of them names.

    Args:
        program: name of the command, such as "npu-ops".
        subcommands: by name.
        arguments: without the program's name; those of the process by default.

    Returns:
        The exit code: the subcommand's own, 2 for a wrong call or an error of the platform, which
        is explained on standard error, 130 after Ctrl-C, 141 when whoever reads standard output
        has gone.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_help(program, subcommands))
        return 0 if given else EXIT_ERROR
    name, *rest = given
    if name not in subcommands:
        print(f"{program}: no command {name!r}.\n{_help(program, subcommands)}", file=sys.stderr)
        return EXIT_ERROR
    try:
        code = int(importlib.import_module(subcommands[name].module).main(rest))
        sys.stdout.flush()  # here, where a reader that has gone is caught
        return code
    except NpuError as error:
        print(f"{program} {name}: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print(f"\n{program} {name}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python would try to flush standard output once more at its end, and fail loudly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _help(program: str, subcommands: Mapping[str, Subcommand]) -> str:
    width = max(map(len, subcommands))
    rows = [f"  {name:{width}}  {one.summary}" for name, one in sorted(subcommands.items())]
    return "\n".join([f"usage: {program} COMMAND ...", "", *rows, "", f"{program} COMMAND --help"])
