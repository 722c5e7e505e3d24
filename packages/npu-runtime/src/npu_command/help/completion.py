"""Scripts that let a shell complete a command: its subcommands, their options, and files."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from npu_command.help.command_parser import CommandParser

__all__ = ["COMPLETION_SUMMARY", "SHELLS", "parser_of", "print_completion"]

COMPLETION_SUMMARY = "print a script that lets your shell complete this command"
SHELLS = ("bash", "fish", "zsh")


def print_completion(command: str, modules: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Prints the script for the shell that the arguments name; returns the exit code.

    Args:
        command: name of the command.
        modules: subcommand -> name of the module with its `main`.
        arguments: those of the subcommand `completion`.
    """
    parser = CommandParser(
        prog=f"{command} completion",
        description="Print a script that lets your shell complete this command, its options and "
        f'the files they take. In bash: eval "$({command} completion bash)".',
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to read the script")
    shell = parser.parse_args(arguments).shell
    import shtab  # most commands print no script

    whole = CommandParser(prog=command)
    subparsers = whole.add_subparsers(parser_class=argparse.ArgumentParser)
    for name, module in sorted(modules.items()):
        found = parser_of(module)
        # A file is what a shell offers for an argument of which it knows nothing.
        for action in found._actions:
            if action.nargs != 0 and action.choices is None and action.type in (None, str, Path):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        subparsers.add_parser(name, parents=[found], add_help=False, help=found.description)
    subparsers.add_parser("completion", parents=[parser], add_help=False, help=COMPLETION_SUMMARY)
    print(shtab.complete(whole, shell))
    return 0


class _ParserFound(Exception):
    """Carries the parser that was about to read arguments."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def parser_of(module: str) -> argparse.ArgumentParser:
    """Returns the parser that a subcommand's `main` makes first; nothing else of it runs.

    Args:
        module: name of the module with `main`.
    """

    def give(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        raise _ParserFound(parser)

    from unittest import mock  # most commands print no script; it imports asyncio

    main = importlib.import_module(module).main
    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", give):
        try:
            main(["--help"])
        except _ParserFound as found:
            return found.parser
    raise AssertionError(f"{module}.main read no arguments")
