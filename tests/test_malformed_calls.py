"""Malformed calls of every public entry point and command, and the judge of how they end.

A short sample always, 5,000 with `-m long`; `PYTHONPATH=tests python -m malformed` takes more.
"""

import importlib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MALFORMED = f"""
import runpy, sys
sys.path.insert(0, {str(HERE)!r})
runpy.run_module("malformed", run_name="__main__", alter_sys=True)
"""


def test_the_judge_finds_what_is_planted_in_a_call(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    verdict = importlib.import_module("malformed.verdict")

    def judged(kind, **facts):
        return verdict.finding_of_call(
            "npu_ops.f", verdict.Outcome(kind, **facts), {"op-shape"}, is_kind_wrong=True
        )

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


def test_the_judge_finds_what_is_planted_in_a_command(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    verdict = importlib.import_module("malformed.verdict")

    def ended(code, text="", programs=None):
        return verdict.finding_of_command(verdict.Outcome("exit", text=text, code=code), programs)

    assert ended(0) is None
    assert ended(2, "npu-llm: no. [option-value]") is None
    assert ended(2) == "exit code 2 without a word"
    assert ended(3) == "exit code 3"
    assert ended(3, programs=["--time", "script.py"]) == "exit code 3"
    assert ended(3, programs=["--time", "raises.py"]) is None
    assert ended(70) == "exit code 70"
    assert ended(1, "Traceback (most recent call last):") == "Traceback"


SAMPLES = [
    (200, 0),
    pytest.param(5_000, 0, marks=pytest.mark.long),
    pytest.param(5_000, 1, marks=pytest.mark.long),
]


@pytest.mark.parametrize("count, seed", SAMPLES)
def test_malformed_calls_end_as_documented(run, count, seed):
    sample = ["--count", str(count), "--seed", str(seed)]
    made = run("python", "-c", MALFORMED, *sample, timeout_s=3600)
    findings = [line for line in made.stdout.splitlines() if line.startswith('{"call"')]
    assert findings == []
    assert made.returncode == 0, made.stderr
    assert '"ended: raised"' in made.stdout
