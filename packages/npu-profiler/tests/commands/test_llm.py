import json
import sys

import pytest

from npu_profiler import cli
from npu_profiler.commands import llm as command
from npu_profiler.commands import platform_command

# As npu-llm writes it: a stand-in for the command, which is another package's.
STAND_IN = """#!{python}
import json, sys
words = sys.argv[1:]
if "--dtype" in words and words[words.index("--dtype") + 1] == "int3":
    sys.exit("npu-llm: no dtype int3")
record = {{"prompt_tokens": 8, "new_tokens": 4, "batch_size": 1, "first_token_s": 0.05,
          "prefill_tokens_per_s": 160.0, "decode_tokens_per_s": 30.0, "peak_memory_bytes": 1 << 30}}
with open(words[words.index("--json") + 1], "w") as file:
    json.dump({{"model": "small", "precision": words[words.index("--dtype") + 1], "device": "CPU",
               "records": [record], "words": words}}, file)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    path = tmp_path / "npu-llm"
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setattr(platform_command.sys, "executable", str(tmp_path / "python"))


def test_each_dtype_is_a_run_of_the_command(stand_in, tmp_path, capsys):
    target, plot = tmp_path / "l.json", tmp_path / "l.svg"
    words = ["--dtypes", "int8,int4", "--sizes", "8,16", "--json", str(target)]
    assert command.main([*words, "--plot", str(plot)]) == 0
    shown = capsys.readouterr().out
    assert "small on CPU" in shown
    assert [line.split()[0] for line in shown.splitlines()[2:]] == ["int8", "int4"]
    first = json.loads(target.read_text())["benches"][0]
    assert first["words"][:3] == ["bench", "--prompt", "8,16"]
    assert plot.read_text().startswith("<svg")


def test_its_failure_is_told_with_its_exit_code(stand_in, capfd):
    assert cli.main(["llm", "--dtypes", "int3"]) == 2
    error = capfd.readouterr().err
    assert "no dtype int3" in error
    assert "[command-failed]" in error


def test_without_npu_llm_the_error_says_how_to_install_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(platform_command.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["llm"]) == 2
    assert "pip install dist/npu_llm-*.whl. [command-missing]" in capsys.readouterr().err
