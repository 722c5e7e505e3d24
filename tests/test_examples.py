"""The examples that are single scripts, run as a reader runs them."""

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
