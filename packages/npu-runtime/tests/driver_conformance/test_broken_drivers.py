"""Each check can fail: drivers with one broken function are caught, and the function is named."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from npu_runtime.driver_conformance.driver_table import FIELDS

PROGRAM = Path(__file__).with_name("broken_drivers.py")

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("broken drivers")]


def load_program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("broken_drivers", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FAULTS = {fault.label: fault for fault in load_program().FAULTS}


@pytest.fixture(scope="module")
def results() -> dict[str, list[list[str]]]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_field_of_the_table_is_broken_in_some_way():
    assert {fault.field for fault in FAULTS.values()} == set(FIELDS)


@pytest.mark.parametrize("label", FAULTS)
def test_a_fault_fails_a_check_of_its_function(results, label):
    outcomes = [outcome for _, outcome, _ in results[label]]
    assert "fail" in outcomes, results[label]


@pytest.mark.parametrize(
    "label", [label for label, fault in FAULTS.items() if fault.name == "crashes"]
)
def test_a_crash_names_the_signal_and_the_function(results, label):
    reasons = [reason for _, outcome, reason in results[label] if outcome == "fail"]
    assert f"ended by signal 11 (SIGSEGV) in {FAULTS[label].field}" in reasons
