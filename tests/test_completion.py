"""Scripts for shells' completion: every subcommand of every command is in them."""

import shutil
import subprocess

import pytest

from npu_command.subcommands import read_command

COMMANDS = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")


@pytest.fixture(scope="module")
def scripts():
    """(command, shell) -> the script that was printed."""
    return {}


@pytest.fixture
def written(run, scripts):
    """written(command, shell): the script that a command prints for a shell."""

    def script(name, shell):
        if (name, shell) not in scripts:
            done = run(name, "completion", shell)
            assert (done.returncode, done.stderr) == (0, "")
            scripts[name, shell] = done.stdout
        return scripts[name, shell]

    return script


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_the_script_names_each_subcommand_and_its_options(written, name, shell):
    script = written(name, shell)
    for subcommand in (*read_command(name.replace("-", "_")).subcommands, "completion", "help"):
        assert subcommand in script
    assert "json" in script


def complete(written, tmp_path, *words):
    """Completions of bash for the last word."""
    (tmp_path / "script.bash").write_text(written(words[0], "bash"))
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
        (("npu-llm", "cache", "r"), ["rm"]),
        (("npu-llm", "generate", "--dtype", "b"), ["bfloat16"]),
        (("npu-profiler", "completion", "fi"), ["fish"]),
    ],
    ids=" ".join,
)
def test_bash_offers_subcommands_options_choices_and_files(written, tmp_path, words, offered):
    (tmp_path / "a-trace.json").touch()
    assert complete(written, tmp_path, *words) == offered
