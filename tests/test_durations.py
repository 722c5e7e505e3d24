"""The report of where `nox -s tests` spent its time, from small made-up records."""

import json
import os
from datetime import datetime

import pytest

import durations

COPY = "packages.npu-ops.tests.npu.test_copy"
TINY = "fixture:packages/npu-ops/tests::tiny"
RUNTIME = """<?xml version="1.0"?><testsuites><testsuite name="pytest" tests="1" time="2.5"
timestamp="2026-11-27T19:00:00.123456">
<testcase classname="packages.npu-runtime.tests.test_load" name="test_load" time="2.000" />
</testsuite></testsuites>"""


def case(name, time_s, properties=(), inner="", place=COPY):
    listed = "".join(f'<property name="{key}" value="{value}" />' for key, value in properties)
    return (
        f'<testcase classname="{place}" name="{name}" time="{time_s}">'
        f"<properties>{listed}</properties>{inner}</testcase>"
    )


@pytest.fixture
def build(tmp_path):
    """A build directory with two suites, two steps of theirs and one of another session."""
    reports = tmp_path / "junit"
    reports.mkdir()
    cases = [
        case("test_bytes[a]", 4, [("setup_s", 3), ("call_s", 1), (TINY, 2.5), ("compile_s", 2)]),
        case("test_bytes[b]", 1, [("setup_s", 1), (TINY, 0.5)], place=f"{COPY}.TestCopy"),
        # A test has two entries if its teardown fails too.
        case("test_strides", 2, inner='<failure message="wrong" />'),
        case("test_strides", 1, [("setup_s", 0), ("call_s", 2)], inner='<error message="left" />'),
    ]
    (reports / "npu-ops.xml").write_text(
        '<testsuites><testsuite name="pytest" time="5.5" timestamp="2026-11-27T20:00:00">'
        f"{''.join(cases)}</testsuite></testsuites>"
    )
    (reports / "npu-runtime.xml").write_text(RUNTIME)
    steps = {
        "platform": {"install wheels": {"started": "2026-11-27T18:40:00", "duration_s": 30.0}},
        "build": {"wheel npu-ops": {"started": "2026-11-27T18:10:00", "duration_s": 90.0}},
        "ecosystem": {"install wheels": {"started": "2026-11-26T10:00:00", "duration_s": 500.0}},
    }
    (tmp_path / "durations.json").write_text(json.dumps(steps))
    return tmp_path


@pytest.fixture
def tables(build):
    """The tables of the report, each a list of lines."""
    text = durations.write_report(durations.read_report(build), most=2)
    return [table.splitlines() for table in text.split("\n\n")]


def test_steps_of_the_tests_session_come_first_in_order_of_time(tables):
    assert [line.split() for line in tables[0][1:]] == [
        ["build:", "wheel", "npu-ops", "90.0", "11-27", "18:10"],
        ["platform:", "install", "wheels", "30.0", "11-27", "18:40"],
    ]


def test_suites_have_wall_time_sum_and_shares(tables):
    assert [line.split() for line in tables[1][1:]] == [
        ["npu-runtime", "1", "2.5", "2.0", "0%", "0%", "11-27", "19:00"],
        ["npu-ops", "3", "5.5", "8.0", "50%", "25%", "11-27", "20:00"],
    ]


def test_slowest_tests_count_both_entries_of_a_test(tables):
    assert [line.split() for line in tables[2][1:]] == [
        ["4.0", "npu-ops:", "npu/test_copy.py::test_bytes[a]"],
        ["3.0", "npu-ops:", "npu/test_copy.py::test_strides"],
    ]


def test_a_class_belongs_to_its_file(tables):
    assert [line.split() for line in tables[3][1:]] == [
        ["8.0", "3", "npu-ops:", "npu/test_copy.py"],
        ["2.0", "1", "npu-runtime:", "test_load.py"],
    ]


def test_fixtures_have_the_sum_of_their_set_ups(tables):
    assert [line.split() for line in tables[4][1:]] == [
        ["3.0", "2", "npu-ops:", "conftest.py::tiny"],
    ]


def test_times_of_other_zones_become_local(build):
    file = build / "junit" / "npu-ops.xml"
    file.write_text(file.read_text().replace("27T20:00:00", "27T20:00:00+05:00"))
    found = {suite.name: suite.started for suite in durations.read_report(build).suites}
    assert found["npu-ops"] == datetime.fromisoformat("2026-11-27T15:00:00+00:00")
    assert found["npu-ops"].utcoffset() == found["npu-runtime"].utcoffset()


def test_total_is_of_steps_and_of_suites_by_wall_time(tables):
    assert tables[5] == ["2.1 min in all: 2.0 min of builds and installations, 0.1 min of tests."]


def test_lines_fit_a_terminal_of_100_columns(build):
    file = build / "junit" / "npu-ops.xml"
    file.write_text(file.read_text().replace("test_strides", f"test_strides[{'long-' * 40}end]"))
    text = durations.write_report(durations.read_report(build), most=20)
    assert max(len(line) for line in text.splitlines()) == 100
    (line,) = [line for line in text.splitlines() if "…" in line]
    assert "npu-ops: npu/test_copy.py::test_strides[long-" in line
    assert line.endswith("long-end]")


def test_a_run_whose_steps_were_not_recorded_has_its_tests(build, capsys):
    (build / "durations.json").unlink()
    assert durations.main(["--most", "1"], build=build) == 0
    shown = capsys.readouterr().out
    assert "none recorded" in shown
    assert "0.1 min in all" in shown


def test_without_reports_the_error_names_the_session_to_run(tmp_path, capsys):
    assert durations.main([], build=tmp_path) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Run nox -s tests." in shown.err
    assert f"{tmp_path}{os.sep}junit" in shown.err


def test_suite_that_was_left_out_is_named_with_its_reason_at_the_end(build):
    (build / "junit" / "npu-compiler-wine.txt").write_text("Wine is not installed.\n")
    text = durations.write_report(durations.read_report(build), most=2)
    assert text.endswith("npu-compiler-wine was left out. Wine is not installed.")
