"""Commands with subcommands: dispatch, and exit codes."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from npu_command.subcommands import (
    Command,
    ErrorPolicy,
    Subcommand,
    read_command,
    run_command,
)

PARTS = """
import argparse, sys
from npu_command.errors import InputError
from npu_command.command_parser import CommandParser

def refusal():
    return InputError("subject: rule.", code="a-code")

def check(options):
    if options.words == ["unmet"]:
        raise InputError("words: a rule, got unmet. Do that.", "unmet")

def main(arguments):
    parser = CommandParser(prog="npu-runtime part", check=check)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    parser.parse_args(arguments)
    kind = arguments[0] if arguments else ""
    if kind == "error":
        raise InputError("subject: a rule, got this. Do that.", "a-code")
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "rich":  # as rich.console does
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)
    if kind == "flood":
        for _ in range(100_000):
            print("line")
    print(arguments)
    return 7
"""
SUBCOMMANDS = {
    "part": Subcommand("the_part", "does a part"),
    "program": Subcommand("the_part", "runs a program", ErrorPolicy.PROGRAM),
    "shared": Subcommand("the_part", "runs a program and says how", ErrorPolicy.SHARED),
    "absent": Subcommand("no_such_module_at_all", "is never imported"),
}
TOOL = Command("npu-runtime", "A tool.", SUBCOMMANDS)


@pytest.fixture
def part(tmp_path, monkeypatch):
    (tmp_path / "the_part.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("the_part", None)


def test_no_color_stands_before_the_subcommand(part, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "")
    assert run_command(TOOL, ["--no-color", "part", "a"]) == 7
    assert capsys.readouterr().out == "['a']\n"
    assert os.environ["NO_COLOR"] == "1"
    assert run_command(TOOL, ["--no-colour", "part"]) == 2
    assert "Did you mean '--no-color'?" in capsys.readouterr().err


def test_a_subcommand_gets_the_rest_and_gives_the_exit_code(part, capsys):
    assert run_command(TOOL, ["part", "a", "-b"]) == 7
    assert capsys.readouterr().out == "['a', '-b']\n"


def test_an_error_of_the_platform_is_a_sentence(part, capsys):
    assert run_command(TOOL, ["part", "error"]) == 2
    assert (
        capsys.readouterr().err
        == "npu-runtime part: subject: a rule, got this. Do that. [a-code]\n"
    )


def test_an_interrupt_is_no_traceback(part, capsys):
    assert run_command(TOOL, ["part", "interrupt"]) == 130
    assert capsys.readouterr().err == "\nnpu-runtime part: interrupted\n"


def test_an_exit_because_a_reader_has_gone_has_its_code(part):
    code = (
        "import sys; from npu_command.subcommands import *\n"
        "tool = Command('tool', '', {'part': Subcommand('the_part', '')})\n"
        "sys.exit(run_command(tool, ['part', 'rich']))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=part, check=False).returncode == 141


@pytest.mark.parametrize("arguments, code", [([], 2), (["--help"], 0), (["-h"], 0)], ids=str)
def test_help_lists_the_subcommands(arguments, code, capsys):
    assert run_command(TOOL, arguments) == code
    assert capsys.readouterr().out.splitlines()[2:10] == [
        "A tool.",
        "",
        "  absent      is never imported",
        "  completion  print a script that lets your shell complete this command",
        "  help        show the options of a command",
        "  part        does a part",
        "  program     runs a program",
        "  shared      runs a program and says how",
    ]


def test_help_of_a_subcommand_is_its_own(part, capsys):
    assert run_command(TOOL, ["help"]) == 0
    assert "  part        does a part" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        run_command(TOOL, ["help", "part"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: npu-runtime part ")
    assert run_command(TOOL, ["help", "prat"]) == 2
    assert "Did you mean 'part'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word, advice",
    [
        ("prat", " Did you mean 'part'?"),
        ("--versoin", " Did you mean '--version'?"),
        ("completions", " Did you mean 'completion'?"),
        ("xyz", ""),
    ],
)
def test_an_unknown_subcommand_is_an_error_with_the_nearest_name_and_all(word, advice, capsys):
    assert run_command(TOOL, [word]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"npu-runtime: no command {word!r}.{advice}\n")
    assert "  part        does a part" in shown


def test_the_version_is_the_distributions(capsys):
    assert run_command(TOOL, ["--version"]) == 0
    assert capsys.readouterr().out == f"npu-runtime {version('npu-runtime')}\n"


def test_what_keeps_all_subcommands_from_running_is_told_once_arguments_are_read(part, capsys):
    refused = Command("tool", "", SUBCOMMANDS, refusal="the_part:refusal")
    assert run_command(refused, ["part", "a"]) == 2
    assert capsys.readouterr() == ("", "tool part: subject: rule. [a-code]\n")
    with pytest.raises(SystemExit):
        run_command(refused, ["part", "--help"])
    assert run_command(refused, ["part", "unmet"]) == 2
    assert "words: a rule, got unmet. Do that. [unmet]" in capsys.readouterr().err


# A package that shows its start, and a subcommand in it.
HEAVY = {
    "__init__.py": """
from npu_command.import_hooks import start
def _start():
    global READY
    READY = print("start of the package") is None
start(_start)
""",
    "settings.py": "def wrong(): print('settings')",
    "light.py": """
import npu_heavy
from npu_command.command_parser import CommandParser
print("module")
def main(arguments):
    parser = CommandParser(prog="heavy light", check=lambda options: print("checked"))
    parser.parse_args(arguments)
    print("main", hasattr(npu_heavy, "READY"))
    return 3
""",
}
RUN = """
import sys
from npu_command.subcommands import Command, Subcommand, run_command
def run(*words, **options):
    part = Subcommand("npu_heavy.light", "does it", **options)
    command = Command("heavy", "", {"light": part}, refusal="npu_heavy.settings:wrong")
    return run_command(command, ["light", *words])
"""


@pytest.fixture
def run_heavy(tmp_path):
    (tmp_path / "npu_heavy").mkdir()
    for name, text in HEAVY.items():
        (tmp_path / "npu_heavy" / name).write_text(text)

    def run(code):
        done = subprocess.run(
            [sys.executable, "-c", RUN + code],
            cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        return done.stdout.splitlines()

    return run


def test_arguments_are_read_once_and_then_the_packages_start(run_heavy):
    said = run_heavy("print(run())")
    assert said == ["module", "checked", "settings", "start of the package", "main True", "3"]


def test_a_bare_subcommand_runs_without_the_start_of_its_packages(run_heavy):
    said = run_heavy("print(run(is_bare=True))\nprint('npu_heavy' in sys.modules)")
    assert said == ["module", "checked", "settings", "main False", "3", "False"]


def test_help_starts_nothing(run_heavy):
    said = run_heavy("try:\n    run('--help')\nexcept SystemExit as end:\n    print(end.code)")
    assert (said[0], said[-1]) == ("module", "0")
    assert not {"checked", "start of the package"} & set(said)


def test_a_main_that_reads_no_arguments_is_a_mistake_of_its_author(tmp_path, monkeypatch):
    (tmp_path / "no_reader.py").write_text("def main(arguments):\n    return 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AssertionError, match="main read no arguments"):
        run_command(Command("tool", "", {"one": Subcommand("no_reader", "")}), ["one"])


def test_a_package_lists_its_command_beside_itself(tmp_path, monkeypatch):
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "a_package" / "commands.toml").write_text(
        'summary = "What it is."\nrefusal = "a_package.device:wrong"\nhides_warnings = true\n'
        '[subcommands.run]\nmodule = "a_package.run"\nsummary = "runs"\nerrors = "program"\n'
        '[subcommands.say]\nmodule = "a_package.say"\nsummary = "says"\nis_bare = true\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert read_command("a_package") == Command(
        "a-package",
        "What it is.",
        {
            "run": Subcommand("a_package.run", "runs", ErrorPolicy.PROGRAM),
            "say": Subcommand("a_package.say", "says", is_bare=True),
        },
        refusal="a_package.device:wrong",
        hides_warnings=True,
    )


def test_an_interrupt_of_a_program_that_is_shared_is_explained(part, capsys):
    assert run_command(TOOL, ["shared", "interrupt"]) == 130
    assert capsys.readouterr().err == "\nnpu-runtime shared: interrupted\n"


@pytest.mark.parametrize("kind, error", [("interrupt", KeyboardInterrupt), ("rich", SystemExit)])
def test_a_program_ends_as_under_python(part, kind, error):
    with pytest.raises(error):
        run_command(TOOL, ["program", kind])


def test_help_for_a_reader_that_has_gone_is_no_traceback(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert run_command(TOOL, ["--help"]) == 141


def test_a_reader_that_has_gone_is_no_traceback(part):
    code = (
        "import sys; from npu_command.subcommands import *\n"
        "tool = Command('tool', '', {'part': Subcommand('the_part', '')})\n"
        "sys.exit(run_command(tool, ['part', 'flood']))"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code], cwd=part, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout is not None
    running.stdout.readline()
    running.stdout.close()
    assert running.wait(timeout=120) == 141
    assert running.stderr is not None
    assert running.stderr.read() == b""
    running.stderr.close()
