"""Options that mean the same in every subcommand of the five commands."""

import argparse
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from npu_command.help.completion import parser_of
from npu_command.subcommands import read_command

PACKAGES = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")
SUBCOMMANDS = [
    (package, name, subcommand.module)
    for package in PACKAGES
    for name, subcommand in sorted(read_command(package.replace("-", "_")).subcommands.items())
]


def with_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and those of actions below it: `npu-llm models rm`."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from with_actions(inner)


@pytest.mark.parametrize("package, name, module", SUBCOMMANDS)
def test_a_subcommand_takes_what_all_take(package, name, module):
    for parser in with_actions(parser_of(module)):
        assert parser.prog.startswith(f"{package} {name}")
        taken = {word: action for action in parser._actions for word in action.option_strings}
        for word in ("-h", "--help", "--no-color", "--version"):
            assert taken[word].nargs == 0, word
        # A result's place has one name, and is no switch.
        assert taken.get("-o") is taken.get("--output")
        assert "-o" not in taken or taken["-o"].nargs is None


@pytest.mark.parametrize(
    "words",
    [("npu-llm", "info"), ("npu-compiler", "cache", "rm"), ("npu-runtime", "completion")],
    ids=" ".join,
)
def test_the_version_is_said_after_a_subcommand_too(run, words):
    done = run(*words, "--no-color", "--version")
    expected = f"{words[0]} {version(words[0])}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_no_color_after_a_subcommand_reaches_a_script_that_it_runs(run, tmp_path):
    (tmp_path / "script.py").write_text("import os, sys\nprint(os.environ['NO_COLOR'], sys.argv)\n")
    done = run("npu-profiler", "trace", "--no-color", "script.py", "--version")
    assert done.returncode == 0, done.stderr
    assert "1 ['script.py', '--version']" in done.stdout
