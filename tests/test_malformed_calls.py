"""Malformed calls of every public entry point and command, and the judge of how they end.

A short sample always, 5,000 with `-m long`; `PYTHONPATH=tests python -m malformed` takes more.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

PLANTED = """
from malformed.verdict import Outcome, finding_of_call, finding_of_command

def judged(kind, **facts):
    return finding_of_call("npu_ops.f", Outcome(kind, **facts), {"op-shape"}, is_kind_wrong=True)

assert judged("ok") is None
assert judged("raised", error=("OpsError",), text="x", code="op-shape") is None
assert judged("raised", error=("RuntimeError",), text="f: no. [op-shape]") is None
assert judged("raised", error=("TypeError",), text="missing") is None
assert judged("raised", error=("OpsError",), text="x", code="new-code") == (
    "code new-code is not listed"
)
assert judged("waited") is None
sparse = "Could not run 'npu::swiglu' with arguments from the 'SparseCPU' backend."
assert judged("raised", error=("NotImplementedError", "RuntimeError"), text=sparse) is None
device = "Invalid device string: 'x'"
assert judged("raised", error=("RuntimeError",), text=device) == "RuntimeError"
for name in ("AttributeError", "KeyError", "IndexError", "OverflowError", "RuntimeError"):
    assert judged("raised", error=(name,), text="x") == name
for kind in ("signal", "hang", "slow", "exit"):
    assert judged(kind) == kind

def ended(code, text="", programs=None):
    return finding_of_command(Outcome("exit", text=text, code=code), programs)

assert ended(0) is None
assert ended(2, "npu-llm: no. [option-value]") is None
assert ended(2) == "exit code 2 without a word"
assert ended(3) == "exit code 3"
assert ended(3, programs=["--time", "script.py"]) == "exit code 3"
assert ended(3, programs=["--time", "raises.py"]) is None
assert ended(70) == "exit code 70"
assert ended(1, "Traceback (most recent call last):") == "Traceback"
"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE)}


def test_the_judge_finds_what_is_planted():
    subprocess.run([sys.executable, "-c", PLANTED], env=ENVIRONMENT, timeout=300, check=True)


SAMPLES = [
    (200, 0),
    pytest.param(5_000, 0, marks=pytest.mark.long),
    pytest.param(5_000, 1, marks=pytest.mark.long),
]


@pytest.mark.parametrize("count, seed", SAMPLES)
def test_malformed_calls_end_as_documented(count, seed):
    sample = ["--count", str(count), "--seed", str(seed)]
    made = subprocess.run(
        [sys.executable, "-m", "malformed", *sample],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    findings = [line for line in made.stdout.splitlines() if line.startswith('{"call"')]
    assert findings == []
    assert made.returncode == 0
    assert '"ended: raised"' in made.stdout
