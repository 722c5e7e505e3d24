import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

import forked_python
from npu_llm.cli import main

CODE = re.compile(r"\[([a-z]+(?:-[a-z]+)+)\]\n$")


def assert_explained(result, code, *quoted):
    """Exit code 2, nothing on standard output, one line that ends with the error's code."""
    exit_code, out, err = result
    assert (exit_code, out) == (2, "")
    line = err.splitlines()[-1]
    assert line.startswith("npu-llm generate: ")
    assert CODE.search(err).group(1) == code
    assert all(word in line for word in quoted)


def test_model_that_is_not_there(in_process):
    result = in_process("generate", "Hello", model="nowhere/model.gguf")
    assert_explained(result, "model-not-found", "nowhere/model.gguf")


def test_gguf_that_is_cut_short(in_process, weights, tmp_path):
    cut = tmp_path / "cut.gguf"
    with weights.open("rb") as whole:
        cut.write_bytes(whole.read(3_000_000))
    assert_explained(in_process("generate", "Hello", model=cut), "gguf-truncated", "cut.gguf")


def test_file_that_is_no_gguf(in_process, tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not a model" * 100)
    assert_explained(in_process("generate", "Hello", model=other), "gguf-corrupt", "other.gguf")


@pytest.fixture
def broken(checkpoint, tmp_path):
    """A copy of the checkpoint, to be broken."""
    folder = tmp_path / "broken"
    shutil.copytree(checkpoint, folder)
    return folder


def test_weights_that_are_no_weights(in_process, broken):
    (broken / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    assert_explained(in_process("generate", "Hello", model=broken), "weights-missing", "lm_head")


def test_weights_that_are_cut_short(in_process, broken, cache_dir):
    before = sorted(cache_dir.iterdir())
    weights = broken / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    assert_explained(in_process("generate", "Hello", model=broken), "weights-truncated", "broken")
    weights.write_bytes(b"nonsense" * 100)
    assert_explained(in_process("generate", "Hello", model=broken), "weights-corrupt", "broken")
    assert sorted(cache_dir.iterdir()) == before


def test_file_of_weights_that_is_missing(in_process, broken):
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (broken / "model.safetensors").rename(broken / "model-1.safetensors")
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    result = in_process("generate", "Hello", model=broken)
    assert_explained(result, "weights-missing", "model-2.safetensors")


def test_architecture_that_nobody_knows(in_process, broken):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "model_type": "llama0"}))
    result = in_process("generate", "Hello", model=broken)
    assert_explained(result, "unknown-architecture", "llama0", "llama")


def test_architecture_that_is_no_language_model(in_process, broken):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "model_type": "vit"}))
    result = in_process("generate", "Hello", model=broken)
    assert_explained(result, "unknown-architecture", "vit", "another kind")


def test_config_that_is_none(in_process, broken):
    (broken / "config.json").write_text("{")
    assert_explained(in_process("generate", "Hello", model=broken), "config-unreadable", "JSON")


@pytest.mark.parametrize(
    "lie",
    [
        {"hidden_size": "wide"},  # the hub's class of error
        {"num_attention_heads": 0},  # ZeroDivisionError
        {"num_key_value_heads": 0},
        {"num_attention_heads": 7},
        {"num_hidden_layers": 1.5},
    ],
    ids=str,
)
def test_config_that_lies(in_process, broken, lie):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, **lie}))
    assert_explained(in_process("generate", "Hello", model=broken), "model-unreadable", "the model")


def test_tokenizer_that_contradicts_itself(in_process, broken):
    content = json.loads((broken / "tokenizer.json").read_text())
    content["model"]["vocab"] = {
        "a": 0
    }  # of which the merges make words: tokenizers' bare Exception
    (broken / "tokenizer.json").write_text(json.dumps(content))
    assert_explained(in_process("generate", "Hello", model=broken), "model-unreadable", "tokenizer")


def test_tokenizer_that_is_none(in_process, broken):
    (broken / "tokenizer.json").write_text("{")
    assert_explained(in_process("generate", "Hello", model=broken), "model-unreadable", "tokenizer")


def test_context_that_the_model_was_not_made_for(in_process):
    result = in_process("generate", "--max-context", "300", "Hello")
    assert_explained(result, "max-context", "256", "300")


def test_cache_of_another_kind(in_process):
    result = in_process("generate", "--kv-cache", "u4", "Hello")
    assert_explained(result, "unknown-kv-cache", "u8", "u4")


def test_memory_that_is_not_there(in_process, monkeypatch):
    monkeypatch.setattr("npu_llm.checkpoint.requirements.available_bytes", lambda: 1000)
    assert_explained(in_process("generate", "Hello"), "memory-need", "GB are available")


def test_cache_without_room(checkpoint, tmp_path, monkeypatch, capsys):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    line = ["generate", "--model", str(checkpoint), "--cache-dir", str(tmp_path / "cache"), "Hello"]
    result = (main(line), *capsys.readouterr())
    assert_explained(result, "disk-need", "0.00 GB are free")
    assert not (tmp_path / "cache").exists()


def test_cache_that_fills_up_while_it_is_written(checkpoint, tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.pwrite", fail)
    monkeypatch.setattr("npu_llm.models.kernel_step.write_weights", fail)
    monkeypatch.setattr("npu_llm.checkpoint.streamed.StreamedWeights.write", fail)
    line = ["generate", "--model", str(checkpoint), "--cache-dir", str(tmp_path / "cache"), "Hello"]
    result = (main(line), *capsys.readouterr())
    assert_explained(result, "cache-full", "No space left")
    assert list((tmp_path / "cache").iterdir()) == []


def test_unknown_dtype(in_process):
    result = in_process("generate", "--dtype", "float8", "Hello")
    assert_explained(result, "unknown-dtype", "float8", "float32", "int4")


def test_prompt_longer_than_the_context(in_process):
    result = in_process("generate", "--greedy", "word " * 300)
    assert_explained(result, "context-overflow", "256")


@pytest.mark.parametrize("temperature", ["0", "-1", "nan", "inf", "100.5"])
def test_temperature_that_is_none(in_process, temperature):
    result = in_process("generate", "--temperature", temperature, "Hello")
    assert_explained(result, "temperature-range", "--greedy")


def test_empty_prompt(in_process):
    assert_explained(in_process("generate", "  "), "empty-prompt", "standard input")


def test_model_without_a_tokenizer(in_process, checkpoint, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint / name, bare)
    assert_explained(in_process("generate", "Hello", model=bare), "missing-tokenizer", "bare")


def test_cache_that_cannot_be_written(checkpoint, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    code = main(
        ["generate", "--model", str(checkpoint), "--cache-dir", str(tmp_path / "file"), "Hello"]
    )
    captured = capsys.readouterr()
    assert_explained((code, captured.out, captured.err), "cache-unwritable", "file")


@pytest.mark.parametrize("arguments", [["generate"], ["generate", "-x", "Hello"]])
def test_subcommand_that_is_not_understood(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: npu-llm generate" in capsys.readouterr().err


def test_command_that_does_not_exist(capsys):
    assert main(["sing"]) == 2
    err = capsys.readouterr().err
    assert "no command 'sing'" in err
    assert "usage: npu-llm" in err


def test_device_that_is_absent(command):
    import npu_runtime

    if npu_runtime.device_info().device == "NPU":
        pytest.skip("this machine has an NPU")
    done = command("generate", "Hello", NPU_DEVICE="NPU")
    result = (done.returncode, done.stdout, done.stderr)
    assert_explained(result, "device-absent", "NPU")
    assert "Traceback" not in done.stderr


@pytest.fixture
def long_answer(checkpoint, cache_dir, preload):
    """A process in the middle of an answer."""
    line = [sys.executable, "-m", "npu_llm.cli", "generate", "--model", str(checkpoint)]
    line += ["--cache-dir", str(cache_dir), "--max-new-tokens", "240", "--seed", "3"]
    line += ["--temperature", "9", "Tell me"]
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forked_python.start(line, preload=preload, **outputs) as process:
        assert process.stdout.read(1)
        yield process


def test_ctrl_c_ends_with_130_and_no_traceback(long_answer):
    long_answer.send_signal(signal.SIGINT)
    _, err = long_answer.communicate(timeout=60)
    if long_answer.returncode == 0:
        pytest.fail("the answer was over before the signal came")
    assert long_answer.returncode == 130
    assert "Traceback" not in err


def test_reader_that_goes_away_ends_with_141_and_no_traceback(long_answer):
    long_answer.stdout.close()
    err = long_answer.stderr.read()
    assert long_answer.wait() == 141
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_help_needs_no_model_and_no_time():
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "npu_llm.cli", "--help"],
        capture_output=True, text=True, check=True, env=dict(os.environ),
    )  # fmt: skip
    assert "generate" in done.stdout
    assert time.perf_counter() - started < 60
