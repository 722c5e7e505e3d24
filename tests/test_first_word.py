"""What needs no device is said at once: help, versions and typing errors import no torch."""

import subprocess
import sys

import pytest

from npu_command.subcommands import read_command

COMMANDS = ("npu_runtime", "npu_ops", "npu_compiler", "npu_profiler", "npu_llm")
SUBCOMMANDS = [
    (package, name)
    for package in COMMANDS
    for name, subcommand in read_command(package).subcommands.items()
    if not subcommand.help_imports
]
SAY = """
import sys
import npu_command
sys.argv = [{name!r}, *{words!r}]
try:
    getattr(npu_command, {package!r})()
finally:
    print("heavy:", sorted({{"torch", "openvino", "transformers"}} & set(sys.modules)))
"""


def said(package, *words):
    code = SAY.format(name=package.replace("_", "-"), words=words, package=package)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.endswith("heavy: []\n"), done.stdout + done.stderr
    return done


@pytest.mark.parametrize("package", COMMANDS)
def test_help_and_a_wrong_word_import_no_torch(package):
    assert (
        f"usage: {package.replace('_', '-')} [--no-color] COMMAND" in said(package, "--help").stdout
    )
    assert "no command 'exlpain'" in said(package, "exlpain").stderr


@pytest.mark.parametrize("package, subcommand", SUBCOMMANDS)
def test_help_of_a_subcommand_imports_no_torch(package, subcommand):
    words = f"usage: {package.replace('_', '-')} {subcommand}"
    assert words in said(package, subcommand, "--help").stdout
