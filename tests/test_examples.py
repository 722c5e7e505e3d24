"""The examples that are single scripts, run as a reader runs them."""

import os
import re
import subprocess
import sys

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
