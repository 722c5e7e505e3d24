"""Options that mean the same in every subcommand of the five commands."""

import argparse
import json
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version

import pytest

from npu_command.command_parser import parser_of
from npu_command.subcommands import read_command

PACKAGES = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")
SUBCOMMANDS = [
    (package, name, subcommand.module)
    for package in PACKAGES
    for name, subcommand in sorted(read_command(package.replace("-", "_")).subcommands.items())
]

# Commands without output for programs, with the reason.
WITHOUT_JSON = {
    ("npu-compiler", "show"): "writes a page",
    ("npu-llm", "chat"): "talks; npu-llm generate answers one prompt",
    ("npu-llm", "serve"): "answers over HTTP",
    ("npu-ops", "conformance"): "writes its cells with --report, csv, html or junit",
    ("npu-ops", "monitor"): "writes CSV with -o",
    ("npu-ops", "new"): "writes a project",
    ("npu-ops", "replay"): "writes its rows with --csv or --html",
    ("npu-ops", "run"): "runs a program, whose standard output it leaves alone; -o has the rows",
    ("npu-profiler", "attach"): "writes a trace",
    ("npu-profiler", "stats"): "writes CSV",
    ("npu-profiler", "trace"): "writes a trace, and leaves a program's standard output alone",
    ("npu-profiler", "view"): "shows a page",
}


def with_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and the parsers of actions below it: `npu-llm cache rm`."""
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
        for word in ("-h", "--help", "--no-color", "-q", "--quiet", "--version"):
            assert taken[word].nargs == 0, word
        # A result's place has one name, and is no switch.
        assert taken.get("-o") is taken.get("--output")
        assert "-o" not in taken or taken["-o"].nargs is None
        # JSON goes to standard output, or to a file.
        assert ("--json" in taken) is ((package, name) not in WITHOUT_JSON)
        assert "--json" not in taken or taken["--json"].nargs == "?"


def test_what_gives_no_json_is_a_subcommand():
    assert WITHOUT_JSON.keys() <= {(package, name) for package, name, _ in SUBCOMMANDS}


def test_json_goes_to_a_file_beside_the_text(run_new, tmp_path):
    on_screen = run_new("npu-llm", "cache", "--cache-dir", str(tmp_path), "--json")
    file = tmp_path / "said.json"
    beside = run_new("npu-llm", "cache", "--cache-dir", str(tmp_path), "--json", str(file))
    assert on_screen.returncode == beside.returncode == 0
    assert "0 entries" in beside.stdout
    assert file.read_text() == on_screen.stdout == "[]\n"


def test_json_spares_what_stands_behind_it(run, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('said')\n")
    done = run("npu-compiler", "explain", "--quiet", "--json", str(script), "--json", "own.json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert done.stderr == "said\n"
    assert script.read_text() == "print('said')\n"


def test_a_file_for_json_is_looked_at_before_the_work(run_new, tmp_path):
    done = run_new("npu-llm", "bench", "--json", str(tmp_path / "none" / "said.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("[output-file]\n")


@pytest.mark.parametrize(
    "words",
    [("npu-llm", "info"), ("npu-compiler", "cache", "rm"), ("npu-runtime", "completion")],
    ids=" ".join,
)
def test_the_version_is_said_after_a_subcommand_too(run_new, words):
    done = run_new(*words, "--no-color", "--version")
    expected = f"{words[0]} {version(words[0])}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_its_version(package):
    assert import_module(package.replace("-", "_")).__version__ == version(package)


def test_no_color_after_a_subcommand_reaches_a_script_that_it_runs(run, tmp_path):
    (tmp_path / "script.py").write_text("import os, sys\nprint(os.environ['NO_COLOR'], sys.argv)\n")
    done = run("npu-profiler", "trace", "--no-color", "script.py", "--version")
    assert done.returncode == 0, done.stderr
    assert "1 ['script.py', '--version']" in done.stdout
