"""The runner of that library's tests: its counts, and that failures without a reason show."""

from pathlib import Path

import pytest

import old_library_tests
from old_library_tests import Outcome, run_example, run_file, table, with_local_models

TESTS = """
import pytest

def test_good(): pass
def test_skipped(): pytest.skip("not here")
def test_known(): assert False
def test_new(): assert False, "what | went wrong"
"""


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    monkeypatch.setitem(old_library_tests.EXCLUDED, "test_file.py::test_known", "a reason")
    (tmp_path / "test_file.py").write_text(TESTS)
    return run_file(tmp_path / "test_file.py")


def test_tests_are_counted_and_failures_without_a_reason_named(outcome):
    assert outcome.counts == {"passed": 1, "skipped": 1, "excluded": 1, "failed": 1}
    assert outcome.reasons == {"a reason"}
    (failure,) = outcome.failures
    assert failure.startswith("test_file.py::test_new: ")
    text = table([outcome, Outcome("test_other.py")])
    assert "| `test_file.py` | 1 | 1 | 2 | a reason; test_file.py::test_new: " in text
    assert text.endswith("| all | 1 | 1 | 2 | |")


def test_names_on_the_hub_become_folders_and_examples_run(tmp_path):
    (tmp_path / "source.py").write_text("print(input('?'), 'owner/model')")
    target = tmp_path / "example.py"
    with_local_models(tmp_path / "source.py", target, {"owner/model": Path("/models/one")})
    assert target.read_text() == "print(input('?'), '/models/one')"
    assert run_example(target) == "runs"
    target.write_text("raise ValueError('no')")
    assert run_example(target) == "ValueError: no"
