"""Ctrl-C at random moments of each command: exit code 130 within 2 s, and caches that are whole."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from npu_llm.models.entry import read_entry

SCRIPT = """
import torch
torch.manual_seed(0)
layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 16))
layer.to("npu").eval()
with torch.no_grad():
    compiled = torch.compile(layer, backend="npu")
    compiled(torch.ones(2, 16, device="npu"))
"""
_LIMIT_S = 2.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tiny_llama_config) -> Path:
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(LlamaConfig(**tiny_llama_config)).save_pretrained(folder)
    return folder


@pytest.fixture
def commands(checkpoint, tmp_path):
    """For each package a command that works from the start, and its possible exit codes."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    model = ["--model", str(checkpoint), "--cache-dir", str(tmp_path / "llm")]
    sizes = ["--prompt", "8", "--new", "4", "--repeats", "1", "--warm-up", "0"]
    return {
        "npu-runtime": ["npu-runtime", "info"],
        "npu-ops": ["npu-ops", "explain", "aten.mm", "64x64xf32"],
        "npu-compiler": ["npu-compiler", "explain", str(script)],
        "npu-llm": ["npu-llm", "bench", *model, *sizes],
        "npu-profiler": [
            "npu-profiler",
            "matmul",
            "--sizes",
            "64",
            "--no-peaks",
            "--seconds",
            "0.1",
        ],
    }


def environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NPU_")}
    return {**kept, "XDG_CACHE_HOME": str(folder / "cache")}


def start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """The command, once its code runs: the interpreter's start is not ours."""
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / command[0]), *command[1:]],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A run in the background ignores Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # It begins with a thread that watches for the signal.
    tasks = Path(f"/proc/{process.pid}/task")
    while process.poll() is None and len(list(tasks.iterdir())) < 2:
        time.sleep(0.002)
    return process


def interrupt(command: list[str], folder: Path, delay_s: float) -> tuple[int, float, bytes]:
    """Exit code, seconds from the signal to the end, and standard error."""
    process = start(command, folder)
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    _, shown = process.communicate(timeout=120)
    return process.returncode, time.monotonic() - sent, shown


def assert_whole(folder: Path) -> None:
    """Each entry of a cache is one, and nothing half done is left."""
    for entry in (folder / "llm").glob("*"):
        assert not entry.name.startswith("."), entry
        read_entry(entry)
    for record in folder.glob("cache/**/*.json"):
        json.loads(record.read_text())


def interrupt_often(command: list[str], folder: Path, times: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    begun = time.monotonic()
    whole = start(command, folder)
    _, shown = whole.communicate(timeout=300)
    assert whole.returncode == 0, shown
    duration_s = time.monotonic() - begun
    latencies = []
    for index in range(times):
        place = folder / f"run-{index}"
        place.mkdir()
        given = [word.replace(str(folder / "llm"), str(place / "llm")) for word in command]
        delay_s = draw.uniform(0, duration_s)
        code, latency_s, shown = interrupt(given, place, delay_s)
        at = f"{command[0]} after {delay_s:.2f} s: {shown.decode()}"
        assert b"Traceback" not in shown, at
        assert b"KeyboardInterrupt" not in shown, at
        if code == 0:
            continue  # it was done
        assert code == 130, at
        assert latency_s < _LIMIT_S, at
        assert_whole(place)
        latencies.append(latency_s)
    return latencies


PACKAGES = ["npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler"]


@pytest.mark.parametrize("package", PACKAGES)
def test_ctrl_c_during_imports_ends_a_command(commands, tmp_path, package):
    code, latency_s, shown = interrupt(commands[package], tmp_path, 0.3)
    assert code == 130, shown
    assert b"Traceback" not in shown
    assert latency_s < _LIMIT_S


@pytest.mark.long
@pytest.mark.parametrize("package", PACKAGES)
def test_ctrl_c_at_random_moments(commands, tmp_path, package, record_property):
    latencies = interrupt_often(commands[package], tmp_path, 50, seed=7)
    assert len(latencies) > 10, "most moments lie within the command's time"
    record_property("interrupted", len(latencies))
    record_property("slowest_s", max(latencies))
    print(f"{package}: {len(latencies)} of 50 interrupted, slowest {max(latencies):.2f} s")
