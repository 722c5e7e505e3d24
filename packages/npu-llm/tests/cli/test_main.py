import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from npu_llm.cli import main

CODE = re.compile(r"\[([a-z]+(?:-[a-z]+)+)\]\n$")


def assert_explained(result, code, *quoted):
    """Exit code 2, nothing on standard output, one line that ends with the error's code."""
    exit_code, out, err = result
    assert (exit_code, out) == (2, "")
    line = err.splitlines()[-1]
    assert line.startswith("npu-llm: ")
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


def test_weights_that_are_no_weights(in_process, checkpoint, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    (broken / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    assert_explained(in_process("generate", "Hello", model=broken), "weights-missing", "lm_head")


def test_architecture_that_nobody_knows(in_process, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "perpetuum"}')
    result = in_process("generate", "Hello", model=tmp_path)
    assert_explained(result, "model-unreadable", "perpetuum")


def test_unknown_dtype(in_process):
    result = in_process("generate", "--dtype", "float8", "Hello")
    assert_explained(result, "unknown-dtype", "float8", "float32", "int4")


def test_prompt_longer_than_the_context(in_process):
    result = in_process("generate", "--greedy", "word " * 300)
    assert_explained(result, "context-overflow", "256")


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


@pytest.mark.parametrize("arguments", [[], ["generate"], ["sing"], ["generate", "-x", "Hello"]])
def test_command_line_that_is_not_understood(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: npu-llm" in capsys.readouterr().err


def test_device_that_is_absent(command):
    import npu_runtime

    if npu_runtime.device_info().device == "NPU":
        pytest.skip("this machine has an NPU")
    done = command("generate", "Hello", NPU_DEVICE="NPU")
    result = (done.returncode, done.stdout, done.stderr)
    assert_explained(result, "device-absent", "NPU")
    assert "Traceback" not in done.stderr


def start_long_answer(checkpoint, cache_dir):
    """A process in the middle of an answer."""
    line = [sys.executable, "-m", "npu_llm.cli", "generate", "--model", str(checkpoint)]
    line += ["--cache-dir", str(cache_dir), "--max-new-tokens", "240", "--seed", "3"]
    # A run that a shell put in the background ignores ctrl-c, and its children would inherit that.
    process = subprocess.Popen(
        [*line, "--temperature", "9", "Tell me"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout.read(1)
    return process


def test_ctrl_c_ends_with_130_and_no_traceback(checkpoint, cache_dir):
    with start_long_answer(checkpoint, cache_dir) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.fail("the answer was over before the signal came")
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_reader_that_goes_away_ends_with_141_and_no_traceback(checkpoint, cache_dir):
    with start_long_answer(checkpoint, cache_dir) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141
    assert b"Traceback" not in err
    assert b"BrokenPipe" not in err


def test_help_needs_no_model_and_no_time():
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "npu_llm.cli", "--help"],
        capture_output=True, text=True, check=True, env=dict(os.environ),
    )  # fmt: skip
    assert "generate" in done.stdout
    assert time.perf_counter() - started < 60
