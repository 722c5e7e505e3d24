"""The comparison of a library's tests on two devices: planted differences show, equal runs pass."""

import sys

import pytest

import library_tests
from library_tests import differences, run_file, table

TESTS = """
import os
import pytest

HERE = os.environ["TRANSFORMERS_TEST_DEVICE"]

def test_good(): pass
def test_worse(): assert HERE == "cpu"
@pytest.mark.skipif(HERE == "cpu", reason="needs an accelerator")
def test_more(): pass
@pytest.mark.skipif(HERE == "cpu", reason="needs an accelerator")
def test_only_failed(): assert False
def test_fails_anywhere(): assert False

@pytest.fixture
def untidy():
    yield
    raise ValueError("cannot be cleaned up")
def test_fails_after_it_passed(untidy): pass
"""


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "test_file.py").write_text(TESTS)
    return tmp_path


def test_what_differs_between_devices_is_named(checkout):
    rows = {("test_file.py", name): run_file(checkout, "test_file.py", name)
            for name in ("cpu", "npu")}  # fmt: skip
    found = differences(rows["test_file.py", "cpu"], rows["test_file.py", "npu"])
    assert found == {
        "worse": ["test_file::test_worse"],
        "more": ["test_file::test_more"],
        "only failed": ["test_file::test_only_failed"],
    }
    assert table(rows).splitlines()[2:] == [
        "| `test_file.py` | cpu | 2 | 2 | 2 |",
        "| `test_file.py` | npu | 2 | 4 | 0 |",
    ]


def test_a_test_that_is_not_there_counts_as_worse():
    assert differences({"a": "passed"}, {})["worse"] == ["a"]


def test_a_difference_ends_with_1_unless_a_second_run_passes(monkeypatch, capsys, tmp_path):
    runs = [{"a": "passed"}, {"a": "failed"}, {"a": "passed"}]
    monkeypatch.setattr(library_tests, "run_file", lambda *_: runs.pop(0))
    monkeypatch.setattr(sys, "argv", ["library_tests.py", str(tmp_path), "test_file.py"])
    assert library_tests.main() == 0
    assert "npu: a: passed when run again" in capsys.readouterr().out
    runs += [{"a": "passed"}, {"a": "failed"}, {"a": "failed"}]
    assert library_tests.main() == 1
    assert "npu: a: worse" in capsys.readouterr().out


def test_a_run_without_a_report_is_an_error(checkout):
    with pytest.raises(RuntimeError, match="made no report"):
        run_file(checkout, "test_file.py", "cpu", ("--no-such-option",))
