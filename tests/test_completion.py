"""Scripts for shells' completion: every subcommand of every command is in them."""

import shutil
import subprocess

import pytest

from npu_command.subcommands import read_command

COMMANDS = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_the_script_names_each_subcommand_and_its_options(run, name, shell):
    done = run(name, "completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    for subcommand in (*read_command(name.replace("-", "_")).subcommands, "completion"):
        assert subcommand in done.stdout
    assert "json" in done.stdout


def complete(run, tmp_path, *words):
    """What bash offers for the last of the words."""
    script = run(words[0], "completion", "bash").stdout
    (tmp_path / "script.bash").write_text(script)
    function = f"_shtab_{words[0].replace('-', '_')}"
    line = (
        f"source script.bash; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        f"{function} {words[0]} '{words[-1]}' '{words[-2]}'; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    "words, offered",
    [
        (("npu-profiler", "sum"), ["summary"]),
        (("npu-profiler", "summary", "--js"), ["--json"]),
        (("npu-profiler", "summary", "--by", "mod"), ["module"]),
        (("npu-profiler", "summary", "a-tra"), ["a-trace.json"]),
        (("npu-profiler", "--vers"), ["--version"]),
        (("npu-llm", "models", "r"), ["rm"]),
        (("npu-llm", "generate", "--dtype", "b"), ["bfloat16"]),
        (("npu-profiler", "completion", "fi"), ["fish"]),
    ],
    ids=" ".join,
)
def test_bash_offers_subcommands_options_choices_and_files(run, tmp_path, words, offered):
    (tmp_path / "a-trace.json").touch()
    assert complete(run, tmp_path, *words) == offered
