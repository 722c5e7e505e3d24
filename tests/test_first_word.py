"""Output that needs no device is quick: help, wrong calls and start-up lines import no torch."""

import json
import os
import subprocess
import sys

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

import npu_llm
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


def said(package, *words, **environment):
    code = SAY.format(name=package.replace("_", "-"), words=words, package=package)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
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


@pytest.mark.parametrize("package, subcommand", SUBCOMMANDS)
def test_a_wrong_option_imports_no_torch(package, subcommand):
    done = said(package, subcommand, "--no-such-option")
    assert done.stderr.startswith("usage: ")
    assert f"{package.replace('_', '-')} {subcommand}: error: " in done.stderr


@pytest.mark.parametrize(
    "line, code",
    [
        ("npu_llm generate --dtype bfloat17 Hello", "unknown-dtype"),
        ("npu_llm generate --model no/such/model.gguf Hello", "model-not-found"),
        ("npu_llm generate --json-schema absent.json Hello", "schema-file"),
        ("npu_llm generate --temperature 0 Hello", "temperature-range"),
        ("npu_llm chat --pipeline fast", "unknown-pipeline"),
        ("npu_llm chat --server http://127.0.0.1:9 --session s.json", "remote-option"),
        ("npu_llm serve --model no/such/model.gguf", "model-not-found"),
        ("npu_llm bench --kv-cache u4", "unknown-kv-cache"),
        ("npu_llm bench --json absent/figures.json", "output-file"),
        ("npu_llm eval --compare float31", "unknown-dtype"),
        ("npu_llm eval --verify never", "unknown-verify"),
        ("npu_llm info no/such/model.gguf", "model-not-found"),
        ("npu_llm export -o made no/such/model.gguf", "model-not-found"),
        ("npu_llm quantize -o made --group-size 3", "group-size"),
        ("npu_llm embed absent.txt --model m", "text-lines"),
        ("npu_llm rerank query absent.txt --model m", "text-lines"),
        ("npu_llm transcribe absent.wav --model m", "audio-unreadable"),
        ("npu_llm describe absent.png what --model m", "image-unreadable"),
        ("npu_llm translate text --model no/such/model.gguf", "model-not-found"),
        ("npu_compiler explain absent.py", "script-absent"),
        ("npu_compiler tune absent.py", "script-absent"),
        ("npu_compiler show absent", "dump-absent"),
        ("npu_compiler check absent", "export-absent"),
        ("npu_ops new class", "op-name"),
        ("npu_ops new torch", "op-name"),
        ("npu_ops replay absent", "capture-unreadable"),
        ("npu_ops run absent.py", "script-missing"),
        ("npu_profiler trace absent.py", "script-missing"),
        ("npu_profiler summary absent.json", "trace-unreadable"),
    ],
)
def test_a_wrong_value_or_file_imports_no_torch(line, code):
    assert f"[{code}]" in said(*line.split()).stderr


@pytest.mark.parametrize("name, value", [("NPU_SANITIZER", "banana"), ("NPU_STRICT", "banana")])
@pytest.mark.parametrize("line", ["npu_llm generate Hello", "npu_llm cache", "npu_ops new my_op"])
def test_a_wrong_setting_imports_no_torch(line, name, value):
    done = said(*line.split(), **{name: value})
    assert done.stderr.count("\n") == 1
    assert f"{name} must be 1 or 0" in done.stderr
    assert "[bad-setting]" in done.stderr


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 512,
         "num_attention_heads": 4, "max_position_embeddings": 256}  # fmt: skip


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A checkpoint that was started once, and the cache that has it."""
    place = tmp_path_factory.mktemp("started")
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(place / "model")
    npu_llm.load(place / "model", cache_dir=place / "cache")
    return place / "model", {"NPU_LLM_CACHE_DIR": str(place / "cache")}


def test_what_a_started_model_is_imports_no_torch(started):
    folder, cache = started
    for words in ([str(folder), "--json"], [str(folder)]):
        assert said("npu_llm", "info", *words, **cache).stderr == ""


def test_the_list_of_models_imports_no_torch(tmp_path):
    cache = {"NPU_LLM_CACHE_DIR": str(tmp_path / "cache")}
    assert "no model is kept" not in said("npu_llm", "cache", **cache).stderr


def test_what_a_model_is_says_the_same_by_the_real_device(started):
    folder, cache = started
    cache = cache | {"NPU_DRIVER": "openvino"}
    text = said("npu_llm", "info", str(folder), "--json", **cache).stdout
    code = (
        "import json, sys, npu_runtime\n"
        "from npu_llm.cli.showing.model_description import describe\n"
        "assert 'torch' in sys.modules\n"
        f"print(json.dumps(describe({str(folder)!r}), indent=2))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | cache, capture_output=True, check=True
    )
    quick, real = (json.loads(one) for one in (text.removesuffix("heavy: []\n"), run.stdout))
    for answer in (quick, real):  # free memory differs from moment to moment
        del answer["memory"]["available_bytes"]
        for row in answer["memory"]["precisions"]:
            del row["max_context_that_fits"]
    assert quick == real
