"""The argument parser of all subcommands, with the common options and shell completion."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from npu_command.output import be_quiet, with_json_file

__all__ = [
    "COMPLETION_SUMMARY",
    "HELP_SUMMARY",
    "SHELLS",
    "CommandParser",
    "offer",
    "parser_of",
    "port_number",
    "print_completion",
    "print_version",
    "when_read",
    "without_colour",
]

Check = Callable[[argparse.Namespace], object]

_action: Callable[[], object] | None = None  # pending actions of when_read


def without_colour() -> None:
    """Turns off colour in this process and its children."""
    os.environ["NO_COLOR"] = "1"  # read by rich and other programs


def print_version(command: str) -> None:
    """Prints a command and the version of its distribution."""
    import importlib.metadata  # late: most calls print no version

    print(f"{command} {importlib.metadata.version(command)}")


def port_number(text: str) -> int:
    """Reads a TCP port number; 0 means any free port."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, got {value}")
    return value


class CommandParser(argparse.ArgumentParser):
    """A parser with the common options --no-color, --quiet and --version.

    Its `prog` begins with the name of the command, which is also the distribution's.

    Args:
        check: raises an NpuError, or calls the parser's `error`, for options that parse but cannot
            be satisfied. It imports nothing heavy and has no side effects.
        is_intermixed: whether options may be between positional arguments of which some can be
            omitted: `generate MODEL -n 3 PROMPT`.
        options: argparse's options.
    """

    def __init__(
        self, *, check: Check | None = None, is_intermixed: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        self._check = check
        self._is_intermixed = is_intermixed
        self.add_argument("--no-color", action=_NoColor, help="print text without colour")
        self.add_argument(
            "-q", "--quiet", action=_Quiet, help="print only errors on standard error"
        )
        self.add_argument("--version", action=_Version, help="print the version and exit")

    def parse_args(  # type: ignore[override]  # argparse's has an overload for each namespace
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """Reads arguments as argparse does, and checks them."""
        if self._is_intermixed:
            found: argparse.Namespace = self.parse_intermixed_args(args, namespace)
        else:
            found = super().parse_args(args, namespace)
        if self._check is not None:
            self._check(found)
        _act_once()
        return found

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parses as argparse does, after separating `--json` from the word that follows it."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args(with_json_file(self, words), namespace)

    def error(self, message: str) -> NoReturn:
        """Exits with usage and message; for an unknown option, the message names those near it."""
        unknown = re.search("unrecognized arguments: .*?(?<!\\S)(-[^ =]+)", message)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            near = _near(unknown[1], known)
            advice = f". Did you mean {' or '.join(near)}?" if near else ""
            message = f"unknown option {unknown[1]}{advice}"
        super().error(message)


def _near(word: str, known: Sequence[str]) -> list[str]:
    """Returns the options that an unknown one may stand for, best first; at most three."""
    import difflib  # late: most calls name no unknown option

    name = word.strip("-").replace("_", "-").lower()
    words = {option.removeprefix("--"): option for option in known if option.startswith("--")}
    parts = set(name.split("-"))
    whole = [one for one in words if parts <= set(one.split("-"))]  # --max-tokens: --max-new-tokens
    if not whole and len(name) > 2:
        joined = name.replace("-", "")  # `--maxnew`: `--max-new-tokens`
        whole = [one for one in words if one.replace("-", "").startswith(joined)]
    found = [*difflib.get_close_matches(name, words, n=3, cutoff=0.75), *whole]
    return [words[one] for one in dict.fromkeys(found)][:3]


@contextmanager
def when_read(action: Callable[[], object]) -> Iterator[None]:
    """Calls an action when the first CommandParser in the body has read and checked its arguments.

    A subcommand's `main` starts with that; the code after it may need more.
    """
    global _action
    before, _action = _action, action
    try:
        yield
    finally:
        _action = before


def _act_once() -> None:
    global _action
    if _action is not None:
        action, _action = _action, None
        action()


class _Flag(argparse.Action):
    """An option without a value, which is not stored in the parsed options."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **options
        )


class _NoColor(_Flag):
    def __call__(self, *_: object) -> None:
        without_colour()


class _Quiet(_Flag):
    def __call__(self, *_: object) -> None:
        be_quiet()


class _Version(_Flag):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print_version(parser.prog.split()[0])
        parser.exit()


COMPLETION_SUMMARY = "print a script that lets your shell complete this command"
HELP_SUMMARY = "show the options of a command"
SHELLS = ("bash", "fish", "zsh")

_OFFERED = "offered"  # the attribute of an argument that holds the names


def offer(action: argparse.Action, names: Sequence[str]) -> None:
    """Adds names to the shell completion of an argument that is checked elsewhere."""
    setattr(action, _OFFERED, tuple(names))


def print_completion(command: str, modules: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Prints the completion script for the shell in the arguments; returns the exit code.

    `modules` maps each subcommand to the module with its `main`.
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
        # Shells offer files for an argument without completion.
        for action in found._actions:
            action.choices = action.choices or getattr(action, _OFFERED, None)
            if action.nargs != 0 and action.choices is None and action.type in (None, str, Path):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        subparsers.add_parser(name, parents=[found], add_help=False, help=found.description)
    subparsers.add_parser("completion", parents=[parser], add_help=False, help=COMPLETION_SUMMARY)
    help_parser = subparsers.add_parser("help", add_help=False, help=HELP_SUMMARY)
    help_parser.add_argument("command", choices=sorted(modules))
    print(shtab.complete(whole, shell))
    return 0


class _ParserFound(Exception):
    """Carries the parser that was about to parse."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def parser_of(module: str) -> argparse.ArgumentParser:
    """Returns the parser that a subcommand's `main` creates first, without running the rest."""

    def give(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        raise _ParserFound(parser)

    from unittest import mock  # late: it imports asyncio, and few commands complete anything

    main = importlib.import_module(module).main
    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", give):
        try:
            main(["--help"])
        except _ParserFound as found:
            return found.parser
    raise AssertionError(f"{module}.main read no arguments")
