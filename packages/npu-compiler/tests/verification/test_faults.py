"""Verification held to a device that computes wrong values: one bit of one element of a result."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import pytest

SETUP = """
import json, sys, warnings
import torch
from npu_runtime import sim
from npu_compiler.errors import WrongResultWarning

def function(scale):
    def run(x):
        return (x * scale).tanh() + 2
    return run

def is_right(found, x, scale):
    return torch.allclose(found.cpu(), function(scale)(x.cpu()), rtol=1e-5, atol=1e-5)

x = torch.rand(8, 16, device="npu") + 0.5
"""

FIRST = """
told = wrong = missed = 0
for number in range(6):
    scale = 1 + number / 8
    torch._dynamo.reset()
    fast = torch.compile(function(scale), backend="npu")
    with torch.no_grad(), sim.flips(0.9, seed=number, bit=BIT) as made, \\
            warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = fast(x)
    first_was_hit = any(flip.run == 0 for flip in made.hits)
    warned = any(issubclass(one.category, WrongResultWarning) for one in caught)
    wrong += first_was_hit
    told += first_was_hit and warned
    missed += not is_right(found, x, scale)
print(json.dumps({"wrong": wrong, "told": told, "missed": missed}))
"""

ALWAYS = """
fast = torch.compile(function(1.5), backend="npu", options={"verify": "always"})
with torch.no_grad():
    fast(x)
told = wrong = missed = 0
for number in range(12):
    with torch.no_grad(), sim.flips(0.4, seed=number, bit=BIT) as made, \\
            warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = fast(x)
    first_was_hit = any(flip.run == 0 for flip in made.hits)
    wrong += first_was_hit
    told += first_was_hit and any(issubclass(one.category, WrongResultWarning) for one in caught)
    missed += not is_right(found, x, 1.5)
    if any("eagerly" in str(one.message) for one in caught):
        torch._dynamo.reset()
        fast = torch.compile(function(1.5), backend="npu", options={"verify": "always"})
        with torch.no_grad():
            fast(x)
print(json.dumps({"wrong": wrong, "told": told, "missed": missed}))
"""


@pytest.fixture
def counts_of(run_python, tmp_path) -> Callable[[str, int], dict[str, int]]:
    """Runs a script on the device that computes wrong values, and returns its counts."""

    def run(code: str, bit: int) -> dict[str, int]:
        environment = {
            **os.environ,
            "NPU_DRIVER": "sim",
            "NPU_DEVICE": "SIM",
            "NPU_COMPILE_CACHE_DIR": str(tmp_path),
        }
        script = "import torch\ntorch.set_num_threads(1)\n" + SETUP + code.replace("BIT", str(bit))
        done = run_python([sys.executable, "-c", script], env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
        counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
        return counts

    return run


@pytest.mark.parametrize("bit", [30, 21], ids=["exponent", "fraction"])
def test_each_program_that_is_wrong_in_its_first_run_is_noticed(counts_of, bit) -> None:
    counts = counts_of(FIRST, bit)
    assert counts["wrong"] > 2
    assert counts["told"] == counts["wrong"]
    assert counts["missed"] == 0


def test_always_notices_each_wrong_run(counts_of) -> None:
    counts = counts_of(ALWAYS, 30)
    assert counts["wrong"] > 2
    assert counts["told"] == counts["wrong"]
    assert counts["missed"] == 0
