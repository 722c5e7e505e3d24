"""Prints the durations of `nox -s tests`; run by `nox -s durations`.

Builds and installs are in build/durations.json; tests, and reasons for leaving out suites, in
build/junit. Each entry is from the last run of its step or suite, with its date in a column.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from junit_report import Case, read_cases

__all__ = ["Report", "Step", "Suite", "main", "read_report", "write_report"]

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ("build", "platform")  # of `nox -s tests`
WIDTH = 100
_MINUTE = "%m-%d %H:%M"


@dataclass(frozen=True)
class Step:
    """A build or an installation."""

    environment: str
    name: str
    started: datetime.datetime
    duration_s: float


@dataclass(frozen=True)
class Suite:
    """The tests of one JUnit file; `duration_s` is wall time, and tests run side by side."""

    name: str
    started: datetime.datetime
    duration_s: float
    cases: tuple[Case, ...]

    @property
    def tests_s(self) -> float:
        """The sum of the tests' durations."""
        return sum(case.duration_s for case in self.cases)


@dataclass(frozen=True)
class Report:
    """All steps and suites in order, and reasons for leaving out suites."""

    steps: tuple[Step, ...]
    suites: tuple[Suite, ...]
    left_out: dict[str, str]


@dataclass
class _Sum:
    """Seconds and number of equal items."""

    total_s: float = 0.0
    count: int = 0

    def add(self, duration_s: float) -> None:
        self.total_s += duration_s
        self.count += 1


def read_report(build: Path) -> Report:
    """Reads the records of `nox -s tests` in the build directory.

    Raises:
        FileNotFoundError: there is no report of a suite.
    """
    files = sorted((build / "junit").glob("*.xml"))
    if not files:
        raise FileNotFoundError(f"No reports of tests in {build / 'junit'}. Run nox -s tests.")
    record = build / "durations.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    steps = [
        Step(environment, name, _local_time(fields["started"]), fields["duration_s"])
        for environment in ENVIRONMENTS
        for name, fields in known.get(environment, {}).items()
    ]
    return Report(
        steps=tuple(sorted(steps, key=lambda step: step.started)),
        suites=tuple(sorted(map(_read_suite, files), key=lambda suite: suite.started)),
        left_out={
            file.stem: file.read_text().strip() for file in sorted((build / "junit").glob("*.txt"))
        },
    )


def write_report(report: Report, *, most: int) -> str:
    """Returns the tables of a report, at most 100 columns wide, and the suites left out.

    Args:
        report: steps and suites.
        most: the number of tests, files and fixtures to list.
    """
    tables = [
        _write_steps(report.steps),
        _write_suites(report.suites),
        _write_tests(report.suites, most),
        _write_files(report.suites, most),
        _write_fixtures(report.suites, most),
        _write_total(report),
        *(f"{name} was left out. {why}" for name, why in report.left_out.items()),
    ]
    return "\n\n".join(tables)


def main(arguments: Sequence[str] | None = None, *, build: Path = ROOT / "build") -> int:
    """Prints the report; returns 1 if there is none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=20, help="length of each list (default: 20)")
    options = parser.parse_args(arguments)
    try:
        report = read_report(build)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    print(write_report(report, most=options.most))
    return 0


def _read_suite(file: Path) -> Suite:
    suite = next(ElementTree.parse(file).iter("testsuite"))
    return Suite(
        name=file.stem,
        started=_local_time(suite.attrib["timestamp"]),
        duration_s=float(suite.attrib["time"]),
        cases=tuple(read_cases(file)),
    )


def _write_steps(steps: Sequence[Step]) -> str:
    lines = [f"{'build or installation':40}{'seconds':>10}  started"]
    for step in steps:
        name = f"{step.environment}: {step.name}"
        lines.append(f"{_shorten(name, 39):40}{step.duration_s:>10,.1f}  {step.started:{_MINUTE}}")
    return "\n".join(lines if steps else [*lines, "none recorded"])


def _write_suites(suites: Sequence[Suite]) -> str:
    columns = f"{'tests':>8}{'wall s':>10}{'tests s':>10}{'set-up':>8}{'compiling':>11}  started"
    lines = [f"{'suite':18}{columns}"]
    for suite in suites:
        setup_s, compile_s = (_sum_property(suite.cases, name) for name in ("setup_s", "compile_s"))
        lines.append(
            f"{suite.name:18}{len(suite.cases):>8,}{suite.duration_s:>10,.1f}{suite.tests_s:>10,.1f}"
            f"{_share(setup_s, suite.tests_s):>8}{_share(compile_s, suite.tests_s):>11}"
            f"  {suite.started:{_MINUTE}}"
        )
    return "\n".join(lines)


def _write_tests(suites: Sequence[Suite], most: int) -> str:
    found = [
        (case.duration_s, f"{suite.name}: {_file(case)}::{case.name}")
        for suite in suites
        for case in suite.cases
    ]
    rows = sorted(found, reverse=True)[:most]
    lines = [f"{'seconds':>9}  slowest tests"]
    return "\n".join([*lines, *(f"{s:>9,.1f}  {_shorten(name, WIDTH - 11)}" for s, name in rows)])


def _write_files(suites: Sequence[Suite], most: int) -> str:
    sums: dict[str, _Sum] = {}
    for suite in suites:
        for case in suite.cases:
            sums.setdefault(f"{suite.name}: {_file(case)}", _Sum()).add(case.duration_s)
    return _write_sums(sums, most, "tests", "slowest files")


def _write_fixtures(suites: Sequence[Suite], most: int) -> str:
    sums: dict[str, _Sum] = {}
    for suite in suites:
        for case in suite.cases:
            for name, value in case.properties:
                if name.startswith("fixture:"):
                    fixture = f"{suite.name}: {_fixture(name.removeprefix('fixture:'))}"
                    sums.setdefault(fixture, _Sum()).add(float(value))
    return _write_sums(sums, most, "set-ups", "slowest fixtures, without those they request")


def _write_sums(sums: dict[str, _Sum], most: int, unit: str, title: str) -> str:
    rows = sorted(sums.items(), key=lambda row: row[1].total_s, reverse=True)[:most]
    lines = [f"{'seconds':>9}{unit:>9}  {title}"]
    for name, of in rows:
        lines.append(f"{of.total_s:>9,.1f}{of.count:>9,}  {_shorten(name, WIDTH - 20)}")
    return "\n".join(lines)


def _write_total(report: Report) -> str:
    steps_s = sum(step.duration_s for step in report.steps)
    suites_s = sum(suite.duration_s for suite in report.suites)
    return (
        f"{_minutes(steps_s + suites_s)} in all: {_minutes(steps_s)} of builds and installations, "
        f"{_minutes(suites_s)} of tests."
    )


def _sum_property(cases: Iterable[Case], name: str) -> float:
    return sum(float(value) for case in cases for key, value in case.properties if key == name)


def _file(case: Case) -> str:
    """Returns a test's file, from its folder of tests."""
    return _inside(f"{case.file.replace('.', '/')}.py")


def _fixture(node: str) -> str:
    """Returns a fixture's file and name; pytest gives the folder of those in a conftest.py."""
    base, _, name = node.rpartition("::")
    if not base:  # of a plugin
        return name
    return f"{_inside(base if '.py' in base else f'{base}/conftest.py')}::{name}"


def _inside(path: str) -> str:
    """Returns the part of a path below its folder of tests: the suite's name replaces the rest."""
    parts = path.split("/")
    at = parts.index("tests") + 1 if "tests" in parts else 0
    return "/".join(parts[at:])


def _shorten(text: str, width: int) -> str:
    """Replaces the middle of a text that is too long."""
    text = " ".join(text.split())
    kept = width - 1
    return text if len(text) <= width else f"{text[: kept - kept // 3]}…{text[-(kept // 3) :]}"


def _share(part_s: float, whole_s: float) -> str:
    return f"{part_s / whole_s:.0%}" if whole_s else ""


def _local_time(text: str) -> datetime.datetime:
    """Parses an ISO time, of any zone or of this machine's."""
    return datetime.datetime.fromisoformat(text).astimezone()


def _minutes(duration_s: float) -> str:
    return f"{duration_s / 60:,.1f} min"


if __name__ == "__main__":
    sys.exit(main())
