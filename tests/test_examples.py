"""The examples that are single scripts, run as a reader runs them."""

import json
import os
import re
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_compiled_training_on_digits_is_as_right_as_the_cpus(root):
    done = subprocess.run(
        [sys.executable, str(root / "examples" / "digits" / "train_digits.py"), "--epochs", "4"],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    eager, compiled = (float(line.split()[-1]) for line in done.stdout.splitlines())
    assert eager > 0.95
    assert abs(compiled - eager) <= 0.01


def test_conversation_reads_only_what_is_new(root, tmp_path):
    questions = ["What is the capital of France?", "And of Italy?"]
    done = subprocess.run(
        [sys.executable, str(root / "examples" / "chat" / "converse.py"), *questions],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env={**os.environ, "NPU_LLM_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "Rome" in done.stdout
    costs = re.findall(r"read (\d+) of (\d+) tokens; .* ([\d.]+) tokens/s", done.stdout)
    (first, whole, rate), (second, longer, _) = (tuple(map(float, cost)) for cost in costs)
    assert first == whole
    assert second < longer / 2
    assert rate > 0


def test_sparse_layer_is_dense_while_its_choice_holds_the_context(root):
    script = root / "examples" / "sparse_attention" / "decode_long.py"
    done = subprocess.run(
        [sys.executable, str(script), "--context", "8192"],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    below, beyond, timed = done.stdout.splitlines()
    number = r"([\d.e+-]+)"
    form = rf"prefill {number}, decode {number} from dense"
    assert all(float(one) < 1e-5 for one in re.search(form, below).groups())
    assert all(float(one) > 1e-2 for one in re.search(form, beyond).groups())
    assert timed.startswith("8,192 tokens, 2,048 chosen")
    assert len(re.findall(r"[\d.]+ ms", timed)) == 3


@pytest.fixture(scope="module")
def small_model(root, tmp_path_factory):
    """small_model(family): a folder with a model of random weights and its tokenizer."""
    work = tmp_path_factory.mktemp("models")
    script = root / "packages" / "npu-llm" / "benchmarks" / "_families_files.py"

    def make(family):
        command = [sys.executable, str(script), str(work), family, "checkpoint", "--small"]
        subprocess.run(command, check=True, capture_output=True, timeout=400)
        return work / f"{family}-small" / "checkpoint"

    return make


def run_example(root, tmp_path, *arguments, text=None):
    done = subprocess.run(
        [sys.executable, str(root / "examples" / arguments[0]), *arguments[1:]],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env={**os.environ, "NPU_LLM_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_passages_of_a_sound_have_rising_times(root, tmp_path, small_model):
    with wave.open(str(tmp_path / "talk.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 16000 * 3))
    model = str(small_model("whisper-tiny"))
    asked = (str(tmp_path / "talk.wav"), "--model", model, "--language", "en")
    lines = run_example(root, tmp_path, "transcription/subtitles.py", *asked)
    starts = [float(line.split(" - ")[0]) for line in lines]
    assert starts
    assert starts == sorted(starts)


def test_each_line_is_translated(root, tmp_path, small_model):
    asked = ("--model", str(small_model("t5-small")), "--dtype", "float32", "--beams", "2")
    text = "good morning\n\nhow are you\nwell\n"
    script = "translation/translate_lines.py"
    assert len(run_example(root, tmp_path, script, *asked, "--batch", "2", text=text)) == 3


def bash_blocks(page: Path) -> str:
    """The commands of a page, in order."""
    return "".join(re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))


def shown(folder: Path, *command: str) -> dict:
    """What `npu-profiler COMMAND --json` finds in traces."""
    program = Path(sys.executable).with_name("npu-profiler")
    done = subprocess.run(
        [str(program), *command, "--json"], cwd=folder, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)["tables"]


def test_the_slow_layer_is_found_and_its_replacement_is_faster(root, tmp_path, cache):
    folder = tmp_path / "slow_layer"
    shutil.copytree(root / "examples" / "slow_layer", folder)
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-c", bash_blocks(folder / "README.md")],
        cwd=folder,
        env={**os.environ, "PATH": programs, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr

    modules = shown(folder, "summary", "dense1.json.gz", "--by", "module")["module"]
    assert modules[0]["module"] == "middle"
    assert {row["module"] for row in modules} == {"middle", "narrow", "stem", "head"}
    traces = [sorted(str(file) for file in folder.glob(f"{v}*")) for v in ("dense", "separable")]
    tables = shown(folder, "compare", "--base", *traces[0], "--new", *traces[1], "--by", "program")
    (program,) = tables["program"]
    assert program["change"] < -0.3
