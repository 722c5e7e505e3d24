"""Commands with subcommands: what is called, and what each end is as an exit code."""

import subprocess
import sys

import pytest

from npu_runtime.commands import Subcommand, run_command

PARTS = """
import sys
from npu_runtime import InputError

def main(arguments):
    kind = arguments[0] if arguments else ""
    if kind == "error":
        raise InputError("subject: a rule; got this. Do that.", "a-code")
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
    "absent": Subcommand("no_such_module_at_all", "is never imported"),
}


@pytest.fixture
def part(tmp_path, monkeypatch):
    (tmp_path / "the_part.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("the_part", None)


def test_a_subcommand_gets_the_rest_and_gives_the_exit_code(part, capsys):
    assert run_command("tool", SUBCOMMANDS, ["part", "a", "-b"]) == 7
    assert capsys.readouterr().out == "['a', '-b']\n"


def test_an_error_of_the_platform_is_a_sentence(part, capsys):
    assert run_command("tool", SUBCOMMANDS, ["part", "error"]) == 2
    assert capsys.readouterr().err == "tool part: subject: a rule; got this. Do that. [a-code]\n"


def test_an_interrupt_is_no_traceback(part, capsys):
    assert run_command("tool", SUBCOMMANDS, ["part", "interrupt"]) == 130
    assert capsys.readouterr().err == "\ntool part: interrupted\n"


def test_an_exit_because_a_reader_has_gone_has_its_code(part):
    code = (
        "import sys; from npu_runtime.commands import *\n"
        "sys.exit(run_command('tool', {'part': Subcommand('the_part', '')}, ['part', 'rich']))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=part, check=False).returncode == 141


@pytest.mark.parametrize("arguments, code", [([], 2), (["--help"], 0), (["-h"], 0)], ids=str)
def test_help_lists_the_subcommands(arguments, code, capsys):
    assert run_command("tool", SUBCOMMANDS, arguments) == code
    assert capsys.readouterr().out.splitlines()[2:4] == [
        "  absent  is never imported",
        "  part    does a part",
    ]


def test_an_unknown_subcommand_is_an_error_that_lists_them(capsys):
    assert run_command("tool", SUBCOMMANDS, ["prat"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("tool: no command 'prat'.\n")
    assert "  part    does a part" in shown


def test_a_reader_that_has_gone_is_no_traceback(part):
    code = (
        "import sys; from npu_runtime.commands import *\n"
        "sys.exit(run_command('tool', {'part': Subcommand('the_part', '')}, ['part', 'flood']))"
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
