"""The judge of malformed calls: what may end a call, and what is a finding.

`PYTHONPATH=tests python -m malformed --count 5000` draws, makes and judges them.
"""

import os
import subprocess
import sys
from pathlib import Path

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
for name in ("AttributeError", "KeyError", "IndexError", "OverflowError", "RuntimeError"):
    assert judged("raised", error=(name,), text="x") == name
for kind in ("signal", "hang", "slow", "exit"):
    assert judged(kind) == kind

def ended(code, text=""):
    return finding_of_command(Outcome("exit", text=text, code=code), runs_programs=False)

assert ended(0) is None
assert ended(2, "npu-llm: no. [option-value]") is None
assert ended(2) == "exit code 2 without a word"
assert ended(70) == "exit code 70"
assert ended(1, "Traceback (most recent call last):") == "Traceback"
"""


def test_the_judge_finds_what_is_planted():
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    subprocess.run([sys.executable, "-c", PLANTED], env=environment, timeout=300, check=True)
